-- Documents, which retrieval nodes search. They belong to an owner and to no conversation: deleting one leaves them alone.

-- +goose Up
CREATE TABLE documents (
    owner      text NOT NULL,
    id         text NOT NULL,
    -- The name of a text search configuration. As a regconfig it would keep pg_upgrade from working, and words from being anything but
    -- written by hand.
    language   text NOT NULL,
    text       text NOT NULL,
    metadata   jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'object'),
    words      tsvector NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, id)
);
CREATE INDEX documents_words ON documents USING gin (words);
CREATE INDEX documents_metadata ON documents USING gin (metadata jsonb_path_ops);
-- Which languages an owner has.
CREATE INDEX documents_language ON documents (owner, language);
-- For callers who work with everybody's.
CREATE INDEX documents_id ON documents (id);

-- +goose Down
DROP TABLE documents;
