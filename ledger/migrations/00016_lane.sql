-- The lane of a tool's calls.

-- +goose Up
ALTER TABLE tool_catalog ADD COLUMN lane text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE tool_catalog DROP COLUMN lane;
