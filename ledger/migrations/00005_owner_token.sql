-- Which execution of an activity a dispatch is. Epoch, schedule and attempt come again when an execution is reset in Temporal,
-- and a tool asks for an effect of its own more than once: only the token tells those apart from a reply that was lost.

-- +goose Up
ALTER TABLE commands ADD COLUMN owner_token text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE commands DROP COLUMN owner_token;
