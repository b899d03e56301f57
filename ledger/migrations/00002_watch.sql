-- What the watcher needs: the status that a stuck run goes back to, and open runs by id, page after page.

-- +goose Up
ALTER TABLE agent_executions ADD COLUMN status_before text;
CREATE INDEX agent_executions_watched ON agent_executions (run_id) WHERE finished_at IS NULL;

-- +goose Down
DROP INDEX agent_executions_watched;
ALTER TABLE agent_executions DROP COLUMN status_before;
