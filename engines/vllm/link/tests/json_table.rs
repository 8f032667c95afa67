//! The documentation names every function and every message.

const DOCUMENTATION: &str = include_str!("../src/lib.rs");

#[test]
fn every_function_and_message_is_documented() {
    let functions = include_str!("../src/abi.rs");
    let names = functions.split("extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 19, "{names:?}");
    for name in names {
        assert!(DOCUMENTATION.contains(&format!("{name}(")), "{name} is not documented");
    }
    let messages = [
        "remap",
        "zero",
        "moving",
        "loaded",
        "captured",
        "kv_layout",
        "kv_accepted",
        "setup_refused",
        "applied",
        "refused",
        "hold",
        "held",
        "retire",
        "retired",
        "resume",
        "demand",
        "bye",
    ];
    for message in messages {
        assert!(DOCUMENTATION.contains(&format!("| `{message}` |")), "{message} is not in the table");
    }
}
