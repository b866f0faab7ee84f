//! Instances of User Mode Linux.

use super::*;

/// Puts the memory files into small tmpfs that only the instances see.
fn small(facts: &mut Facts, ids: [u64; 2]) {
    for (instance, id) in facts.instances.iter_mut().zip(ids) {
        let file = instance.file.as_mut().unwrap();
        file.directory = format!("/dev/shm/{id}").into();
        let tmpfs = file.tmpfs.as_mut().unwrap();
        (tmpfs.id, tmpfs.is_here) = (TmpfsId(id), false);
        tmpfs.space = Space { size: mib(250), free: mib(50) };
    }
}

/// Gives the first instance another file of the same size, and changes it. The other instance uses its image in the same way.
fn image(facts: &mut Facts, change: fn(&mut ImageFacts)) {
    let image = &mut facts.instances[0].images[0];
    (image.path, image.file, image.sample) = ("/srv/copy.img".into(), (1, 2), Some(2));
    change(image);
    facts.instances[1].images[0].is_backing = facts.instances[0].images[0].is_backing;
}

#[test]
fn what_uml_instances_lack() {
    let with = |spoil: fn(&mut Facts)| {
        move |facts: &mut Facts| {
            facts.instances = vec![instance("lab1", 201), instance("lab2", 202)];
            spoil(facts);
        }
    };
    assert_eq!(found(with(|_| ())), []);
    gives(
        PROBLEM,
        "uml.console",
        "/home/u/.uml/lab1/mconsole",
        with(|facts| facts.instances[0].has_console = false),
    );
    gives(
        PROBLEM,
        "uml.memory_on_disk",
        "export TMPDIR=/dev/shm",
        with(|facts| facts.instances[0].file.as_mut().unwrap().kind = Some("ext4".to_owned())),
    );
    gives(
        WARNING,
        "uml.tmpfs_small",
        "sudo mount -o remount,size=587M /dev/shm",
        with(|facts| {
            for instance in &mut facts.instances {
                let tmpfs = instance.file.as_mut().unwrap().tmpfs.as_mut().unwrap();
                tmpfs.space = Space { size: mib(500), free: mib(290) };
            }
        }),
    );
    gives(
        WARNING,
        "uml.tmpfs_small",
        "other files there hold 300 MiB",
        // 2 × 256 MiB of 1 GiB, of which each holds 100: other files hold 300, so 812 of 1024 is enough, and 212 more are not.
        with(|facts| {
            for instance in &mut facts.instances {
                let tmpfs = instance.file.as_mut().unwrap().tmpfs.as_mut().unwrap();
                tmpfs.space = Space { size: mib(800), free: mib(300) };
            }
        }),
    );
    gives(
        HINT,
        "uml.copies",
        "ubd0=NAME.cow,/srv/copy.img",
        with(|facts| image(facts, |image| image.is_backing = false)),
    );
    // The same content in two files: copies, also below COW files.
    gives(
        HINT,
        "uml.copies",
        "have the same content: /srv/copy.img, /srv/root.img",
        with(|facts| image(facts, |image| image.sample = Some(1))),
    );
    // Backing files of one size with different content are no copies. Nor is one file with two names.
    assert_eq!(found(with(|facts| image(facts, |image| image.is_backing = true))), []);
    assert_eq!(found(with(|facts| image(facts, |image| image.file = (1, 1)))), []);
    // Two directories of one tmpfs are one finding; two tmpfs at the same place in two mount namespaces are two.
    let one = found(with(|facts| small(facts, [26, 26])));
    assert_eq!(kinds(&one), [("uml.tmpfs_small", WARNING)]);
    let two = found(with(|facts| small(facts, [26, 27])));
    assert_eq!(kinds(&two), [("uml.tmpfs_small", WARNING); 2]);
    // Root runs nothing in a mount namespace of a user: the programs there are the user's.
    let said = text(&two[1]);
    assert!(said.contains("as its owner") && said.contains("export TMPDIR="), "{said}");
    assert!(["sudo", "nsenter", "remount"].iter().all(|word| !said.contains(word)), "{said}");
    let liar = found(with(|facts| {
        (facts.instances[0].memory, facts.instances[0].claims) = (mib(4), Some(mib(900 << 10)));
    }));
    assert_eq!(kinds(&liar), [("guest.claims", WARNING)]);
    let unmanaged = found(with(|facts| {
        facts.instances[0].has_console = false;
        facts.instances[0].managed = false;
    }));
    assert_eq!(kinds(&unmanaged), [("uml.console", WARNING)]);
}
