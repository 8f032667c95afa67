//! What the live screen shows of the board, and how keys change that.

use super::board::{Board, Key, Row, Sort};
use super::keys::Command;

/// What is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// The table of tenants.
    #[default]
    List,
    /// The page of the selected tenant.
    Tenant,
}

/// The choices of the person who looks. The selection follows a tenant, not a row: tenants come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct App {
    /// What is open.
    pub shown: Shown,
    /// Whether the help lies over it.
    pub help: bool,
    /// Whether new looks are left out.
    pub paused: bool,
    /// The order of the list.
    pub sort: Sort,
    /// Whether the order is turned round.
    pub reverse: bool,
    /// First line of a page, or of the help, that is shown.
    pub scroll: usize,
    selected: Option<Key>,
}

impl App {
    /// The selected row of `rows`; 0 where the tenant is gone.
    pub fn index(&self, rows: &[Row<'_>]) -> usize {
        rows.iter().position(|row| Some(row.key()) == self.selected).unwrap_or(0)
    }

    /// Carries `command` out; a screen has `height` lines. Whether to end.
    pub fn apply(&mut self, command: Command, board: &Board, height: usize) -> bool {
        match command {
            Command::Quit => return true,
            Command::Help => (self.help, self.scroll) = (!self.help, 0),
            Command::Pause => self.paused = !self.paused,
            Command::Back if self.help => (self.help, self.scroll) = (false, 0),
            Command::Back => (self.shown, self.scroll) = (Shown::List, 0),
            Command::Move(by) => self.go(by, board),
            Command::Page(by) => self.go(by * (height.max(2) / 2) as isize, board),
            Command::Open => self.open(board),
            Command::Sort(sort) => (self.sort, self.reverse) = (sort, false),
            Command::Reverse => self.reverse = !self.reverse,
        }
        false
    }

    fn open(&mut self, board: &Board) {
        let rows = board.rows(self.sort, self.reverse);
        let Some(row) = rows.get(self.index(&rows)) else { return };
        (self.selected, self.shown, self.help, self.scroll) = (Some(row.key()), Shown::Tenant, false, 0);
    }

    fn go(&mut self, by: isize, board: &Board) {
        if self.help || self.shown == Shown::Tenant {
            self.scroll = self.scroll.saturating_add_signed(by);
            return;
        }
        let rows = board.rows(self.sort, self.reverse);
        let to = self.index(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(to).map(Row::key);
    }
}
