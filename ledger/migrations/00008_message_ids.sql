-- A caller may bring the id of its message. Unique over all owners, it told one of them which ids another has, by what was
-- refused; it is unique in its conversation.

-- +goose Up
ALTER TABLE messages DROP CONSTRAINT messages_pkey, ADD PRIMARY KEY (conversation_id, id);

-- +goose Down
ALTER TABLE messages DROP CONSTRAINT messages_pkey, ADD PRIMARY KEY (id);
