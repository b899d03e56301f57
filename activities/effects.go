package activities

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.temporal.io/sdk/temporal"

	"runledger/agent"
	"runledger/policy"
	"runledger/tool"
)

// EffectLedger records the effects that are a value.
type EffectLedger interface {
	RecordEffect(ctx context.Context, v agent.NewValue) (agent.EffectReply, error)
}

// RecordEffect gives workflow code a recorded value.
func (a *Activities) RecordEffect(ctx context.Context, in agent.EffectCall) (agent.EffectReply, error) {
	value, err := newValue(in.Kind)
	if err != nil {
		return agent.EffectReply{}, crossing(err)
	}
	reply, err := a.ledger.RecordEffect(ctx, agent.NewValue{EffectCall: in, Value: value})
	return reply, crossing(err)
}

// newValue makes a value that may go on record. The time is the ledger's to tell.
func newValue(kind agent.CommandKind) (json.RawMessage, error) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	switch kind {
	case agent.NowCommand:
		return nil, nil
	case agent.UUIDCommand:
		b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4, variant 10
		h := hex.EncodeToString(b[:])
		return json.Marshal(h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:])
	case agent.RandomCommand:
		return json.Marshal(float64(binary.LittleEndian.Uint64(b[:])>>11) / (1 << 53))
	}
	return nil, agent.Failed(agent.CodeInternal, "%q is not a kind of recorded value", kind)
}

// toolEffects are the recorded effects of one execution of a tool.
type toolEffects struct {
	a *Activities
	// ctx is the context of the tool's effect, which ends what the tool asks for as well.
	ctx      context.Context
	stop     context.CancelFunc
	owner    agent.Call
	within   agent.Within
	deadline time.Time
	rules    *agent.Policy
	agent    string
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	given  map[agent.CommandKind]int
	// inUse are the effects at work by name: the gate takes two of one dispatch for one.
	inUse map[string]*sync.Mutex
	doubt *agent.Error
}

var _ tool.Effects = (*toolEffects)(nil)

func (a *Activities) toolEffects(ctx context.Context, call agent.Call, d dispatch, def *agent.Definition) *toolEffects {
	ctx, stop := context.WithCancel(ctx)
	return &toolEffects{a: a, ctx: ctx, stop: stop, owner: call, deadline: d.deadline, rules: def.Policy, agent: def.Agent,
		within: agent.Within{CommandID: call.CommandID, DispatchNo: d.no, Dispatch: d.by},
		given:  map[agent.CommandKind]int{}, inUse: map[string]*sync.Mutex{}}
}

// close ends the effects when the tool has returned. It gives the error of an effect that is in doubt, and with it the tool.
func (f *toolEffects) close() *agent.Error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	f.running.Wait()
	return f.doubt
}

// enter lets an effect begin, in a context that ends with the tool's effect and with the caller's own.
func (f *toolEffects) enter(ctx context.Context) (within context.Context, leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, agent.Failed(agent.CodeInternal, "command %s: its tool has returned, and asks for an effect", f.owner.CommandID)
	}
	f.running.Add(1)
	within, cancel := context.WithCancelCause(context.WithValue(f.ctx, withinTool{}, true))
	release := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return within, func() { release(); cancel(nil); f.running.Done() }, nil
}

func (f *toolEffects) Now(ctx context.Context) (at time.Time, err error) {
	err = f.value(ctx, agent.NowCommand, &at)
	return at, err
}

func (f *toolEffects) UUID(ctx context.Context) (id string, err error) {
	err = f.value(ctx, agent.UUIDCommand, &id)
	return id, err
}

func (f *toolEffects) Random(ctx context.Context) (x float64, err error) {
	err = f.value(ctx, agent.RandomCommand, &x)
	return x, err
}

// value gives the next recorded value of a kind. A number is used up only by success: a tool that asks again after an error
// asks for the same value, as its next execution would.
func (f *toolEffects) value(ctx context.Context, kind agent.CommandKind, into any) error {
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	unlock := f.lock(string(kind))
	defer unlock()
	f.mu.Lock()
	n := f.given[kind] + 1
	f.mu.Unlock()
	id := agent.EffectCommandID(f.owner.CommandID, agent.ValueEffectID(kind, n))
	value, err := newValue(kind)
	if err != nil {
		return err
	}
	var reply agent.EffectReply
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	err = untilAnswered(ctx, func(ctx context.Context) error {
		reply, err = f.a.ledger.RecordEffect(ctx, agent.NewValue{
			EffectCall: agent.EffectCall{Scope: f.scope(), NodeID: f.owner.NodeID, CommandID: id, Kind: kind},
			Value:      value, Within: &f.within})
		return err
	})
	if err != nil {
		return ofTool(err, id, agent.FaultTransient)
	}
	if err := json.Unmarshal(reply.Value, into); err != nil {
		return agent.Failed(agent.CodeInternal, "command %s: its recorded value: %w", id, err)
	}
	f.mu.Lock()
	f.given[kind] = n
	f.mu.Unlock()
	return nil
}

func (f *toolEffects) HTTP(ctx context.Context, effectID string, req tool.HTTPRequest) (tool.HTTPResponse, error) {
	if err := agent.CheckEffectID(effectID); err != nil {
		return tool.HTTPResponse{}, err
	}
	ctx, leave, err := f.enter(ctx)
	if err != nil {
		return tool.HTTPResponse{}, err
	}
	defer leave()
	unlock := f.lock("http " + effectID)
	defer unlock()
	call := agent.Call{Scope: f.scope(), CommandID: agent.EffectCommandID(f.owner.CommandID, effectID), NodeID: f.owner.NodeID,
		NodeIndex: f.owner.NodeIndex, Schedule: f.owner.Schedule, Timeout: agent.Duration(time.Until(f.deadline))}
	c := f.a.httpCommand(call, req)
	c.asked.Agent = f.agent
	c.call.Refusal = f.refusal(c)
	c.begin.Within = &f.within
	row, err := f.a.passWithin(ctx, c)
	if err != nil {
		return tool.HTTPResponse{}, err
	}
	return f.response(row)
}

// response reads what the record says of a request.
func (f *toolEffects) response(row agent.CommandRow) (tool.HTTPResponse, error) {
	failure := &agent.Error{Code: agent.CodeInternal, Message: "command " + row.CommandID + " has no outcome", Fault: agent.FaultUnknown}
	if row.Error != nil {
		*failure = *row.Error
	}
	failure.CommandID, failure.NodeID = row.CommandID, row.NodeID
	switch row.State {
	case agent.Committed:
		return responseOf(&row)
	case agent.CommandFailed:
		failure.Fault = agent.FaultDefinite
	case agent.CommandAborted:
		failure.Fault = agent.FaultTransient // the tool's own context ends
	case agent.CommandInDoubt:
		failure.Code, failure.Fault = agent.CodeInDoubt, agent.FaultUnknown
		f.mu.Lock()
		if f.doubt == nil {
			f.doubt = failure
		}
		f.mu.Unlock()
	case agent.Dispatched, agent.Released, agent.Fenced:
	}
	return tool.HTTPResponse{}, failure
}

// refusal asks the run's policy about a request.
func (f *toolEffects) refusal(c command) *agent.Refusal {
	return policy.Decide(f.rules, policy.Command{RunID: f.owner.RunID, Agent: f.agent, NodeID: c.call.NodeID, CommandID: c.call.CommandID,
		Kind: c.begin.Kind, Effect: c.begin.Effect}).Refusal()
}

func (f *toolEffects) scope() agent.Scope {
	return agent.Scope{RunID: f.owner.RunID, Epoch: f.owner.Epoch}
}

func (f *toolEffects) lock(name string) (unlock func()) {
	f.mu.Lock()
	m := f.inUse[name]
	if m == nil {
		m = &sync.Mutex{}
		f.inUse[name] = m
	}
	f.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// passWithin takes the command of an effect within a tool through the gate. Its dispatch is the tool's. What another dispatch
// of the tool has left behind is waited for: this one holds the tool's command, so that dispatch is gone or going.
func (a *Activities) passWithin(ctx context.Context, c command) (agent.CommandRow, error) {
	by := c.begin.Within.Dispatch
	by.Token = rand.Text() // the tool may ask again: that is another try, not the one whose reply was lost
	a.at(ctx, agent.BeforeBegin, c.call)
	a.prepare(ctx, &c, by)
	for {
		begun, asked, err := a.beginCommand(context.WithoutCancel(ctx), c.begin)
		if err != nil {
			return agent.CommandRow{}, ofTool(err, c.call.CommandID, agent.FaultTransient)
		}
		switch begun.Verdict {
		case agent.MayExecute, agent.MayExecuteAgain, agent.MayProceed:
			a.at(ctx, agent.AfterBegin, c.call)
			if stale(&begun, asked) {
				continue
			}
			row, err := a.execute(ctx, c, begun)
			if err == nil {
				return row, nil
			}
			fault := agent.FaultUnknown
			if row.State == agent.Released {
				fault = agent.FaultTransient // the tool's next execution tries again, under the same key
			}
			return row, ofTool(err, c.call.CommandID, fault)
		case agent.MustReconcile:
			row, decided, err := a.reconcileLost(context.WithoutCancel(ctx), &c, begun)
			if err != nil {
				return row, ofTool(err, c.call.CommandID, agent.FaultTransient)
			}
			if decided {
				return row, nil
			}
		case agent.MustWait:
			select {
			case <-time.After(begun.Wait):
			case <-ctx.Done():
				return agent.CommandRow{}, ofTool(context.Cause(ctx), c.call.CommandID, agent.FaultTransient)
			}
		case agent.Mismatch:
			return agent.CommandRow{}, agent.Failed(agent.CodeMismatch, "command %s is on record with another request (hash %s, now %s)",
				c.call.CommandID, begun.Row.InputHash, c.begin.InputHash)
		default:
			if begun.Row == nil || begun.Verdict == agent.Refuse {
				return agent.CommandRow{}, agent.Unknown(agent.CodeSuperseded, "command %s: %s", c.call.CommandID, begun.Verdict)
			}
			return *begun.Row, nil
		}
	}
}

// ofTool is an error of the gate as a tool reads it, and as the tool may return it.
func ofTool(err error, commandID string, fault agent.Fault) *agent.Error {
	e := &agent.Error{Code: agent.CodeInternal, Message: err.Error(), CommandID: commandID, Fault: fault}
	if app, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		e.Code, e.Message, e.RetryAfter = agent.Code(app.Type()), app.Message(), app.NextRetryDelay()
		if e.Code == agent.CodeMismatch {
			e.Fault = agent.FaultDefinite
		}
	}
	e.Message = fmt.Sprintf("effect %s: %s", commandID, e.Message)
	return e
}

// noEffects are the effects of a tool where it can have none.
type noEffects struct{ when string }

func (n noEffects) err() error {
	return agent.Failed(agent.CodeInternal, "a tool has no recorded effects %s", n.when)
}

func (n noEffects) Now(context.Context) (time.Time, error)  { return time.Time{}, n.err() }
func (n noEffects) UUID(context.Context) (string, error)    { return "", n.err() }
func (n noEffects) Random(context.Context) (float64, error) { return 0, n.err() }
func (n noEffects) HTTP(context.Context, string, tool.HTTPRequest) (tool.HTTPResponse, error) {
	return tool.HTTPResponse{}, n.err()
}
