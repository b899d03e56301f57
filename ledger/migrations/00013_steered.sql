-- A request that is repeated under its key gets the same answer again. Where that was a message to a run at work, its stream begins
-- at the message, so the key has to tell which one it was.

-- +goose Up
ALTER TABLE idempotency_keys ADD COLUMN steered bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE idempotency_keys DROP COLUMN steered;
