//! View state of the live screen, and how keys change it.

use super::keys::KeyCommand;
use super::model::{Row, RowKey, Sort, TopModel};

/// The open view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActiveView {
    /// The table of tenants.
    #[default]
    List,
    /// The page of the selected tenant.
    Tenant,
}

/// The choices of the user. The selection follows a tenant, not a row: tenants are added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppState {
    /// The open view.
    pub view: ActiveView,
    /// Whether the help is open.
    pub is_help_open: bool,
    /// Whether new readings are ignored.
    pub is_paused: bool,
    /// Sort order of the list.
    pub sort: Sort,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// First visible line of a page or of the help.
    pub scroll: usize,
    selected: Option<RowKey>,
}

impl AppState {
    /// The selected row of `rows`; 0 if the tenant was removed.
    pub fn index(&self, rows: &[Row<'_>]) -> usize {
        rows.iter().position(|row| Some(row.key()) == self.selected).unwrap_or(0)
    }

    /// Applies `command` on a screen of `height` lines. Returns whether to quit.
    pub fn apply(&mut self, command: KeyCommand, board: &TopModel, height: usize) -> bool {
        match command {
            KeyCommand::Quit => return true,
            KeyCommand::Help => (self.is_help_open, self.scroll) = (!self.is_help_open, 0),
            KeyCommand::Pause => self.is_paused = !self.is_paused,
            KeyCommand::Back if self.is_help_open => (self.is_help_open, self.scroll) = (false, 0),
            KeyCommand::Back => (self.view, self.scroll) = (ActiveView::List, 0),
            KeyCommand::Move(by) => self.move_selection(by, board),
            KeyCommand::Page(by) => self.move_selection(by * (height.max(2) / 2) as isize, board),
            KeyCommand::Open => self.open(board),
            KeyCommand::Sort(sort) => (self.sort, self.reverse) = (sort, false),
            KeyCommand::Reverse => self.reverse = !self.reverse,
        }
        false
    }

    fn open(&mut self, board: &TopModel) {
        let rows = board.rows(self.sort, self.reverse);
        let Some(row) = rows.get(self.index(&rows)) else { return };
        (self.selected, self.view, self.is_help_open, self.scroll) =
            (Some(row.key()), ActiveView::Tenant, false, 0);
    }

    fn move_selection(&mut self, by: isize, board: &TopModel) {
        if self.is_help_open || self.view == ActiveView::Tenant {
            self.scroll = self.scroll.saturating_add_signed(by);
            return;
        }
        let rows = board.rows(self.sort, self.reverse);
        let to = self.index(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(to).map(Row::key);
    }
}
