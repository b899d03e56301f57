package ledger

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"runledger/agent"
)

const eventColumns = `sequence_number, event_type, conversation_id, run_id, root_run_id, message_id, node_id, command_id, attempt,
	created_at, event_data, epoch`
const eventColumnCount = 12

// scanEvent reads one event.
func scanEvent(row pgx.CollectableRow) (agent.Event, error) {
	var scan eventScan
	return scan.event(row, 0)
}

// eventScan reads events row by row from what Postgres sent, since a long log is read by those who wait for it: the general way costs
// more than the query. Texts that come again and again are kept once, and the data of many events share a piece of memory.
type eventScan struct {
	ids  [4]knownID
	data []byte
}

type knownID struct {
	raw  [16]byte
	text string
}

// dataTogether is the size of the pieces.
const dataTogether = 32 << 10

// event reads eventColumns, which stand behind other columns.
func (s *eventScan) event(row pgx.CollectableRow, behind int) (e agent.Event, err error) {
	raw, fields := row.RawValues()[behind:], row.FieldDescriptions()[behind:]
	if fields[0].Format != pgx.BinaryFormatCode { // the connection was made to speak in texts
		err := row.Scan(append(make([]any, behind), &e.Sequence, &e.Type, &e.ConversationID, &e.RunID, &e.RootRunID, &e.MessageID, &e.NodeID, &e.CommandID,
			&e.Attempt, &e.CreatedAt, &e.Data, &e.Epoch)...)
		return e, err
	}
	e.Sequence = int64(be.Uint64(raw[0]))
	e.Type = eventType(raw[1])
	for i, to := range []*string{&e.ConversationID, &e.RunID, &e.RootRunID, &e.MessageID} {
		*to = s.ids[i].of(raw[2+i])
	}
	e.NodeID, e.CommandID = string(raw[6]), string(raw[7])
	e.Attempt = int(int32(be.Uint32(raw[8])))
	e.CreatedAt = time.UnixMicro(int64(be.Uint64(raw[9])) + postgresEpoch).UTC()
	e.Data = s.kept(raw[10], fields[10].Format == pgx.BinaryFormatCode)
	e.Epoch = int(int32(be.Uint32(raw[11])))
	return e, nil
}

var be = binary.BigEndian

// postgresEpoch is the first moment of 2000 in microseconds.
const postgresEpoch = 946_684_800_000_000

func (k *knownID) of(raw []byte) string {
	if id := [16]byte(raw); k.text == "" || id != k.raw {
		k.raw, k.text = id, uuid.UUID(id).String()
	}
	return k.text
}

// kept copies data that is gone with its row.
func (s *eventScan) kept(raw []byte, versioned bool) json.RawMessage {
	if versioned {
		raw = raw[1:]
	}
	if len(raw) > cap(s.data)-len(s.data) {
		s.data = make([]byte, 0, max(dataTogether, len(raw)))
	}
	at := len(s.data)
	s.data = append(s.data, raw...)
	return json.RawMessage(s.data[at:len(s.data):len(s.data)])
}

var eventTypes = func() map[string]agent.EventType {
	known := map[string]agent.EventType{}
	for _, t := range agent.EventTypes() {
		known[string(t)] = t
	}
	return known
}()

func eventType(raw []byte) agent.EventType {
	if t, ok := eventTypes[string(raw)]; ok {
		return t
	}
	return agent.EventType(raw)
}

// commandRowColumns reads a command with its result's bytes, wherever they stand. $1 is the run, $2 the command.
const commandRowColumns = `SELECT c.run_id, c.command_id, c.node_id, c.kind, c.tool, c.effect_class, c.state, c.input_hash, c.dispatch_no, c.base_no,
	c.owner_epoch, c.owner_schedule, c.owner_attempt, c.owner_token, c.lease_until, c.deadline, c.sequence_number,
	coalesce(c.result, (SELECT p.bytes FROM payloads p WHERE p.hash = c.result_hash)), c.result_hash, c.error, c.resolution, c.goes_on,
	CASE WHEN c.goes_on THEN (SELECT max(m.sequence_number) FROM messages m JOIN agent_executions r USING (run_id, conversation_id)
		WHERE m.run_id = c.run_id AND m.role = 'user' AND m.id <> r.message_id AND m.sequence_number > r.start_sequence) END, c.usage,
	a.approval_id::text, a.state, a.arguments_hash, coalesce(a.edited_hash, a.arguments_hash), a.edited, a.expires_at, a.decided_by, a.note
	FROM commands c LEFT JOIN approvals a ON a.approval_id = c.approval_id WHERE c.run_id = $1 AND c.command_id = $2 `

func collectCommandRow(rows pgx.Rows) (*agent.CommandRow, error) {
	c, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*agent.CommandRow, error) {
		var c agent.CommandRow
		var lease, deadline *time.Time
		var result, failure, edited, usage []byte
		var approval, state, asked, hash, by, note *string
		var expires *time.Time
		var said *int64
		err := row.Scan(&c.RunID, &c.CommandID, &c.NodeID, &c.Kind, &c.Tool, &c.Effect, &c.State, &c.InputHash, &c.DispatchNo, &c.BaseNo,
			&c.Owner.Epoch, &c.Owner.Schedule, &c.Owner.Attempt, &c.Owner.Token, &lease, &deadline, &c.Sequence, &result, &c.ResultHash, &failure, &c.Resolution, &c.GoesOn, &said, &usage,
			&approval, &state, &asked, &hash, &edited, &expires, &by, &note)
		if err != nil {
			return nil, err
		}
		if approval != nil {
			c.Approval = &agent.ApprovalRow{ApprovalID: *approval, State: agent.ApprovalState(*state), Asked: *asked, Hash: *hash, Edited: edited,
				ExpiresAt: *expires, By: *by, Note: *note}
		}
		if lease != nil {
			c.LeaseUntil = *lease
		}
		if deadline != nil {
			c.Deadline = *deadline
		}
		if said != nil {
			c.Said = *said
		}
		c.Result, c.Tokens = result, agent.TokensOf(usage)
		if failure != nil {
			c.Error = &agent.Error{}
			err = json.Unmarshal(failure, c.Error)
		}
		return &c, err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return c, err
}
