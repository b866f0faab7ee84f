//! Users of the host, as an operator writes them.
//!
//! | word | users |
//! |---|---|
//! | `system` | root, users below 1000, the user of this process, members of the group `memtide`, the user of libvirt's guests |
//! | `@GROUP` | the members of this group |
//! | `1001`, `100000-165535` | this number, these numbers; nobody needs to have them |
//! | anything else | the user with this name |
//!
//! A name that the host does not have is a mistake: it would silently leave guests out.

use std::collections::BTreeSet;

use memtide_host::Accounts;
use memtide_model::Users;

use crate::mistake::Quoted;

/// The user whose guests root's libvirt starts on Debian and its descendants: 64055. Only libvirt runs programs as this user.
const OF_LIBVIRT: &str = "libvirt-qemu";

/// The list of a host without a configuration.
pub(crate) fn system(accounts: &Accounts) -> Users {
    Users::new(vec![Users::SYSTEM.to_owned()], of_system(accounts))
}

/// The ranges of numbers that a word means, or why it means none.
pub(crate) fn of_word(word: &str, accounts: &Accounts) -> Result<Vec<(u32, u32)>, String> {
    if word == Users::SYSTEM {
        return Ok(of_system(accounts));
    }
    if let Some(group) = word.strip_prefix('@') {
        let members = accounts.members_of(group).ok_or_else(|| {
            format!("/etc/group has no group {}: correct it, or write its members", Quoted(group))
        })?;
        return Ok(each(members));
    }
    if let Some(range) = range(word) {
        return range.map(|range| vec![range]);
    }
    let number = accounts.number_of(word).ok_or_else(|| {
        format!("/etc/passwd has no user {}: correct it, or write the user's number", Quoted(word))
    })?;
    Ok(each([number]))
}

fn of_system(accounts: &Accounts) -> Vec<(u32, u32)> {
    // The group is there only if somebody has made it.
    let members = accounts.members_of(Users::GROUP).unwrap_or_default();
    let all = members.into_iter().chain(accounts.own()).chain(accounts.number_of(OF_LIBVIRT));
    let people: BTreeSet<u32> = all.filter(|user| *user >= Users::FIRST_PERSON).collect();
    [vec![Users::SYSTEM_RANGE], each(people)].concat()
}

fn each(users: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    users.into_iter().map(|user| (user, user)).collect()
}

/// A number or a range of numbers; `None` for a word that does not begin as a number.
fn range(word: &str) -> Option<Result<(u32, u32), String>> {
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    // The last number stands for no user.
    let number = |text: &str| text.parse().ok().filter(|number: &u32| *number != u32::MAX);
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    Some(match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => {
            Err(format!("{} ends before it begins: write {last}-{first}", Quoted(word)))
        }
        (Some(low), Some(high)) if is_plain(first) && is_plain(last) => Ok((low, high)),
        _ => {
            let most = u32::MAX - 1;
            Err(format!("{} is no number up to {most}, and no range as in 100000-165535", Quoted(word)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_users_are_root_system_users_the_own_user_and_the_groups_members() {
        assert_eq!(system(&Accounts::default()), Users::default());
        let accounts = Accounts::parse(
            "alice:x:1001:1001::/:\nbob:x:1002:1002::/:\ndaemon:x:2:2::/:\n",
            "memtide:x:990:alice,daemon\n",
        );
        let users = system(&accounts);
        for (user, expected) in [(0, true), (999, true), (1000, false), (1001, true), (1002, false)] {
            assert_eq!(users.have(Some(user)), expected, "{user}");
        }
    }

    #[test]
    fn the_user_of_this_process_belongs_to_the_system() {
        let accounts = Accounts::read(&memtide_host::Root::system());
        assert!(accounts.own().is_some() && system(&accounts).have(accounts.own()));
    }
}
