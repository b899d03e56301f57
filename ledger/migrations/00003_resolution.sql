-- Commands in doubt get an answer, and their runs are told.

-- +goose Up
-- The dispatch after which somebody reopened the command: those up to it no longer count against the limit.
ALTER TABLE commands ADD COLUMN base_no int NOT NULL DEFAULT 0;
-- What was last said of the command while it was in doubt: outcome, by, note, result_hash.
ALTER TABLE commands ADD COLUMN resolution jsonb;
-- Decided after the run's terminal event, when nothing may be appended: the event follows the next run_reopened.
ALTER TABLE commands ADD COLUMN unannounced boolean NOT NULL DEFAULT false;
ALTER TABLE intents DROP CONSTRAINT intents_kind_check;
ALTER TABLE intents ADD CONSTRAINT intents_kind_check CHECK (kind IN ('start', 'cancel', 'resolved'));

-- +goose Down
DELETE FROM intents WHERE kind = 'resolved';
ALTER TABLE intents DROP CONSTRAINT intents_kind_check;
ALTER TABLE intents ADD CONSTRAINT intents_kind_check CHECK (kind IN ('start', 'cancel'));
ALTER TABLE commands DROP COLUMN unannounced;
ALTER TABLE commands DROP COLUMN resolution;
ALTER TABLE commands DROP COLUMN base_no;
