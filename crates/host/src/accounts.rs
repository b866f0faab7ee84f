//! The users and groups of this host, by name: `/etc/passwd` and `/etc/group`.
//!
//! **Rule.** Only these two files are read. Users of a directory service (LDAP, sssd, systemd-homed) have no names here, but have numbers. A
//! line that is not as passwd(5) or group(5) says counts as not there.

use std::path::Path;

use memtide_model::{Outsiders, Users};

use crate::{Root, read_regular};

/// The longest part of a file that is read: some ten thousand users.
const LONGEST: u64 = 4 << 20;

/// The users and groups of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    users: Vec<User>,
    groups: Vec<Group>,
    /// The user of this process, where that matters.
    own: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    number: u32,
    group: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    number: u32,
    members: Vec<String>,
}

impl Accounts {
    /// Reads the accounts. A file that cannot be read has nobody.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let text = |path| {
            let bytes = read_regular(&root.path(Path::new(path)), LONGEST).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let own = Some(rustix::process::geteuid().as_raw());
        Self { own, ..Self::parse(&text("/etc/passwd"), &text("/etc/group")) }
    }

    /// The accounts in the texts of the two files, without a user of this process.
    #[must_use]
    pub fn parse(passwd: &str, group: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let number = fields.nth(1)?.parse().ok()?;
            Some(User { name, number, group: fields.next()?.parse().ok()? })
        };
        let group_of = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let number = fields.nth(1)?.parse().ok()?;
            let members = fields.next()?.split(',').map(str::trim).filter(|name| !name.is_empty());
            Some(Group { name, number, members: members.map(str::to_owned).collect() })
        };
        Self {
            users: passwd.lines().filter_map(user).collect(),
            groups: group.lines().filter_map(group_of).collect(),
            own: None,
        }
    }

    /// The user of this process; `None` for accounts of another host.
    #[must_use]
    pub const fn own(&self) -> Option<u32> {
        self.own
    }

    /// The number of the user with this name.
    #[must_use]
    pub fn number_of(&self, name: &str) -> Option<u32> {
        self.users.iter().find(|user| user.name == name).map(|user| user.number)
    }

    /// The name of the user with this number.
    #[must_use]
    pub fn name_of(&self, number: u32) -> Option<&str> {
        self.users.iter().find(|user| user.number == number).map(|user| user.name.as_str())
    }

    /// Tells of the listed outsiders the names of their users, and the lines that admit these users beside those in `users`.
    pub fn tell(&self, outsiders: &mut Outsiders, users: &Users) {
        for outsider in &mut outsiders.listed {
            outsider.tell(outsider.user.and_then(|user| self.name_of(user)), users);
        }
    }

    /// The numbers of the members of the group with this name, ascending: those that it lists, and those whose own group it is. `None` if there is
    /// no such group.
    #[must_use]
    pub fn members_of(&self, name: &str) -> Option<Vec<u32>> {
        let group = self.groups.iter().find(|group| group.name == name)?;
        let is_member = |user: &&User| user.group == group.number || group.members.contains(&user.name);
        let mut members: Vec<u32> = self.users.iter().filter(is_member).map(|user| user.number).collect();
        members.sort_unstable();
        members.dedup();
        Some(members)
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::Outsider;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        alice:x:1001:1001:Alice:/home/alice:/bin/sh\n\
        bob:x:1002:44:Bob:/home/bob:/bin/sh\n\
        # nonsense\n:x:7:7::/:\nbroken:x:many:1::/:\n+::::::\n";
    const GROUP: &str = "root:x:0:\nmemtide:x:44:alice,carol\nempty:x:45:\nbroken\n";

    #[test]
    fn users_and_groups_are_found_by_name() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        assert_eq!((accounts.number_of("alice"), accounts.number_of("carol")), (Some(1001), None));
        assert_eq!((accounts.name_of(0), accounts.name_of(7)), (Some("root"), None));
        assert_eq!(accounts.members_of("memtide"), Some(vec![1001, 1002]), "listed, or by their own group");
        assert_eq!(accounts.members_of("empty"), Some(Vec::new()));
        assert_eq!(accounts.members_of("nobody"), None);
    }

    #[test]
    fn outsiders_have_the_names_of_their_users_and_the_lines_that_admit_them() {
        let outsider = |pid, user| Outsider::new("web1", pid, user);
        let listed = vec![outsider(42, Some(1001)), outsider(43, Some(100_000)), outsider(44, None)];
        let mut outsiders = Outsiders { listed, count: 9 };
        Accounts::parse(PASSWD, GROUP).tell(&mut outsiders, &Users::default());
        let lines: Vec<_> = outsiders.listed.iter().map(|one| one.line.as_deref()).collect();
        let expected =
            [Some("users = [\"system\", \"alice\"]"), Some("users = [\"system\", \"100000\"]"), None];
        assert_eq!(lines, expected);
        assert_eq!(outsiders.listed[0].user_name.as_deref(), Some("alice"));
    }

    #[test]
    fn the_accounts_of_a_tree_are_read_and_missing_files_have_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = Accounts::read(&Root::at(dir.path()));
        assert_eq!(accounts.number_of("root"), None);
        assert!(accounts.own().is_some());
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/passwd"), PASSWD).unwrap();
        assert_eq!(Accounts::read(&Root::at(dir.path())).number_of("bob"), Some(1002));
    }
}
