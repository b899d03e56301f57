package ledger

// LeadFor is Lead with its own timing, for tests.
var LeadFor = (*Ledger).lead
