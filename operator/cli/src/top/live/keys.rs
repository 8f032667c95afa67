//! The keys of the live screen: one table for their actions and the help.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::Sort;

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyCommand {
    /// Moves the selection down by this number of rows; on a page, scrolls.
    Move(isize),
    /// Moves by this number of screens, down or up.
    Page(isize),
    /// Opens the selected tenant's page.
    Open,
    /// Returns to the list.
    Back,
    /// Sorts the list.
    Sort(Sort),
    /// Reverses the order.
    Reverse,
    /// Freezes the screen, or resumes.
    Pause,
    /// Shows or hides the help.
    Help,
    /// Quits.
    Quit,
}

/// A key code, and whether Ctrl is pressed.
type Key = (KeyCode, bool);

/// The keys of one command.
#[derive(Debug)]
pub struct Binding {
    /// Alternative keys.
    pub keys: &'static [Key],
    /// Description for the help.
    pub help: &'static str,
    /// The command.
    pub command: KeyCommand,
}

const fn char(character: char) -> Key {
    (KeyCode::Char(character), false)
}

const fn code(code: KeyCode) -> Key {
    (code, false)
}

/// All bindings, in the order of the help.
pub const BINDINGS: [Binding; 17] = {
    use KeyCommand::{Back, Help, Move, Open, Page, Pause, Quit, Reverse, Sort as By};
    const fn bind(keys: &'static [Key], help: &'static str, command: KeyCommand) -> Binding {
        Binding { keys, help, command }
    }
    [
        bind(&[code(KeyCode::Up), char('k')], "selects the tenant above; scrolls a page up", Move(-1)),
        bind(&[code(KeyCode::Down), char('j')], "selects the tenant below; scrolls a page down", Move(1)),
        bind(&[code(KeyCode::PageUp)], "goes up by one screen", Page(-1)),
        bind(&[code(KeyCode::PageDown)], "goes down by one screen", Page(1)),
        bind(&[code(KeyCode::Enter)], "opens the page of the selected tenant", Open),
        bind(&[code(KeyCode::Esc)], "goes back to the list", Back),
        bind(&[char('n')], "sorts by name", By(Sort::Name)),
        bind(&[char('s')], "sorts by SLO, the worst first", By(Sort::Slo)),
        bind(&[char('t')], "sorts by tokens per second, the most first", By(Sort::Tokens)),
        bind(&[char('f')], "sorts by TTFT (time to the first token), the longest first", By(Sort::Ttft)),
        bind(&[char('b')], "sorts by TBT (time between tokens), the longest first", By(Sort::Tbt)),
        bind(&[char('v')], "sorts by KV cache in use, the fullest first", By(Sort::Kv)),
        bind(&[char('l')], "sorts by layers that are not resident, the most first", By(Sort::Layers)),
        bind(&[char('r')], "reverses the order", Reverse),
        bind(&[char('p')], "pauses and resumes", Pause),
        bind(&[char('?')], "shows this help, and hides it", Help),
        bind(&[char('q'), (KeyCode::Char('c'), true)], "quits", Quit),
    ]
};

impl Binding {
    /// Returns the names of its keys.
    pub fn label(&self) -> String {
        self.keys.iter().map(label).collect::<Vec<_>>().join(" ")
    }
}

fn label((code, ctrl): &Key) -> String {
    let name = match code {
        KeyCode::Up => "↑".to_owned(),
        KeyCode::Down => "↓".to_owned(),
        KeyCode::Char(character) if *ctrl => character.to_uppercase().to_string(),
        code => code.to_string(),
    };
    if *ctrl { format!("Ctrl-{name}") } else { name }
}

/// Returns the command of a key; `None` = it has none.
pub fn command(event: &KeyEvent) -> Option<KeyCommand> {
    let ctrl = event.modifiers.contains(KeyModifiers::CONTROL);
    let alt = event.modifiers.contains(KeyModifiers::ALT);
    let asks = |binding: &&Binding| !alt && binding.keys.contains(&(event.code, ctrl));
    BINDINGS.iter().find(asks).map(|binding| binding.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_meaning() {
        let keys: Vec<_> = BINDINGS.iter().flat_map(|binding| binding.keys).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?} is bound twice");
        }
    }

    #[test]
    fn character_with_ctrl_or_alt_is_another_key() {
        let pressed = |character, modifiers| command(&KeyEvent::new(KeyCode::Char(character), modifiers));
        assert_eq!(pressed('c', KeyModifiers::CONTROL), Some(KeyCommand::Quit));
        assert_eq!([pressed('c', KeyModifiers::NONE), pressed('q', KeyModifiers::CONTROL)], [None, None]);
        assert_eq!(
            [pressed('q', KeyModifiers::ALT), pressed('?', KeyModifiers::SHIFT)],
            [None, Some(KeyCommand::Help)]
        );
    }
}
