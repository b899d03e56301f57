-- Whoever stops a run stops its child runs, however deep: they are found by their parent.

-- +goose Up
CREATE INDEX agent_executions_children ON agent_executions (parent_run_id) WHERE parent_run_id IS NOT NULL;

-- +goose Down
DROP INDEX agent_executions_children;
