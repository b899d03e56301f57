package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/auth"
	"runledger/internal/pgtest"
	"runledger/ledger"
	"runledger/policy"
)

// attack is an API over a real ledger, where owner a has something and owner b wants it.
type attack struct {
	*bench
	store *ledger.Ledger
	keys  *auth.Keyring
	// open and ended are runs of a in conversations of their own; older and newer are b's, from before and after them.
	older, open, ended, newer agent.Run
	// answers are what anybody was told, headers and all.
	answers strings.Builder
}

func newAttack(t testing.TB) *attack {
	t.Helper()
	url := pgtest.Database(t)
	store, err := ledger.Open(t.Context(), url, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	require.NoError(t, store.PublishTools(t.Context(), "default", newFakeLedger().tools))
	x := &attack{store: store, keys: auth.NewKeyring(append(allTokens(), auth.Token{Hash: auth.HashOf(revoked), Caller: auth.Caller{Owner: "a", Name: "a", Role: auth.Operator}}))}
	x.bench = newBench(t, func(c *Config) { c.Ledger, c.Tokens = store, x.keys })
	require.Equal(t, 1, x.keys.Replace(allTokens()))
	x.older, x.open, x.ended, x.newer = x.start("b"), x.start("a"), x.start("a"), x.start("b")
	for _, run := range []agent.Run{x.older, x.open, x.ended, x.newer} {
		x.waits(url, run)
	}
	for owner, runs := range map[string][]agent.Run{"a": {x.open, x.ended}, "b": {x.older, x.newer}} {
		for _, run := range runs { // documents, under an id that whoever knows the run can name
			require.Equal(t, 201, x.ask("POST", documentsPath, `{"documents":[{"id":"`+run.MessageID+`","text":"of `+owner+`"}]}`, bearer(owner, auth.User)).Code)
		}
	}
	require.Equal(t, 200, x.ask("POST", runPath(x.ended.RunID)+"/cancel", "", bearer("a", auth.User)).Code)
	// Whatever happened, nobody was told a token, and no log has one.
	t.Cleanup(func() {
		told := x.answers.String() + x.logged.String()
		require.NotEmpty(t, x.logged.String())
		require.NotContains(t, told, "s3cret")
		require.NotContains(t, told, revoked)
		for _, token := range allTokens() {
			require.NotContains(t, told, string(token.Hash[:]))
		}
	})
	return x
}

const revoked = "s3cret-that-was-revoked"

// start starts a run of an owner, which nobody works on.
func (x *attack) start(owner string) agent.Run {
	x.t.Helper()
	w := x.ask("POST", "/api/v1/agent/run", `{"input":"6*7 of `+owner+`","mode":"react","wait":0}`, bearer(owner, auth.User), "Idempotency-Key: "+uuid.NewString())
	require.Equal(x.t, 202, w.Code, "%s", w.Body)
	return document[agent.Run](x.t, w)
}

// waits lets a run wait for an approval. Its id is that of the run's message, so that whoever knows the run can name it.
func (x *attack) waits(url string, run agent.Run) {
	x.t.Helper()
	begun, err := x.store.Begin(x.t.Context(), agent.Begin{
		Call: agent.Call{Scope: agent.Scope{RunID: run.RunID, Epoch: 1}, CommandID: "main#1.0", NodeID: "main", Schedule: 1, Refusal: &agent.Refusal{Decision: policy.Ask},
			Timeout: agent.Duration(time.Minute)},
		Dispatch: agent.Dispatch{Epoch: 1, Schedule: 1, Attempt: 1}, Kind: agent.ToolCommand, Tool: "calculator", Effect: agent.External, InputHash: "h",
		Input: json.RawMessage(`{"expression":"6*7"}`), ArgumentsHash: agent.ArgumentsHash(json.RawMessage(`{"expression":"6*7"}`))})
	require.NoError(x.t, err)
	db, err := pgx.Connect(x.t.Context(), url)
	require.NoError(x.t, err)
	defer func() { require.NoError(x.t, db.Close(x.t.Context())) }()
	for _, sql := range []string{`UPDATE approvals SET approval_id = $1 WHERE approval_id = $2`, `UPDATE commands SET approval_id = $1 WHERE approval_id = $2`} {
		_, err = db.Exec(x.t.Context(), sql, run.MessageID, begun.Awaits.ApprovalID)
		require.NoError(x.t, err)
	}
}

// ask asks under one request id, so that answers can be compared.
func (x *attack) ask(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	x.t.Helper()
	w := x.do(method, path, body, append([]string{"X-Request-Id: attack"}, headers...)...)
	require.NoError(x.t, w.Result().Header.Write(&x.answers))
	x.answers.Write(w.Body.Bytes())
	return w
}

// bodies are requests that would be accepted. A route that is not here takes an empty one.
var bodies = map[string]string{
	root + "/run":           `{"input":"x","wait":0}`,
	root + "/run/stream":    `{"input":"x"}`,
	"/api/agent/run":        `{"input":"x","wait":0}`,
	"/api/agent/run/stream": `{"input":"x"}`,
	root + "/chat":          `{"message":"x"}`,
	root + "/runs/{run_id}/commands/{command_id}/resolve": `{"outcome":"failed"}`,
	root + "/runs/{run_id}/signal":                        `{"name":"go"}`,
	root + "/runs/{run_id}/fork":                          `{"wait":0}`,
	root + "/runs/{run_id}/approvals/{approval_id}":       `{"decision":"deny"}`,
	root + "/approvals/{approval_id}":                     `{"decision":"deny"}`,
	root + "/runs/{run_id}/limits":                        `{"max_steps":3}`,
	documentsPath:                                         `{"documents":[{"text":"x"}]}`,
}

var parameter = regexp.MustCompile(`\{(\w+)\}`)

// pathOf fills a route in with what a run has. Ids that no run has are made up.
func pathOf(pattern string, run agent.Run) string {
	return parameter.ReplaceAllStringFunc(pattern, func(p string) string {
		switch p {
		case "{run_id}":
			return run.RunID
		case "{conversation_id}":
			return run.ConversationID
		case "{command_id}":
			return "main%231"
		case "{approval_id}", "{document_id}":
			return run.MessageID
		default:
			return uuid.NewString()
		}
	})
}

// nobodys is a run that is not there.
func nobodys() agent.Run {
	return agent.Run{RunID: uuid.NewString(), ConversationID: uuid.NewString(), MessageID: uuid.NewString()}
}

// told is an answer as a stranger reads it: without the ids that the question had.
func told(w *httptest.ResponseRecorder, of agent.Run) (status int, header http.Header, body string) {
	hide := strings.NewReplacer(of.RunID, "RUN", of.ConversationID, "CONVERSATION", of.MessageID, "MESSAGE")
	header = w.Header().Clone()
	header.Del("Content-Length")
	return w.Code, header, hide.Replace(w.Body.String())
}

// requireSameAs asks something of another owner's run and of none, and requires that the answers are the same.
func (x *attack) requireSameAs(victim agent.Run, ask func(agent.Run) *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	x.t.Helper()
	none := nobodys()
	unknown := ask(none)
	foreign := ask(victim)
	wantStatus, wantHeader, wantBody := told(unknown, none)
	status, header, body := told(foreign, victim)
	require.Equal(x.t, wantStatus, status, "%s", body)
	require.Equal(x.t, wantHeader, header)
	require.Equal(x.t, wantBody, body)
	return foreign
}

// snapshot is all that owner a can see.
func (x *attack) snapshot() (all []string) {
	x.t.Helper()
	for _, run := range []agent.Run{x.open, x.ended} {
		for _, path := range []string{runPath(run.RunID), runPath(run.RunID) + "/commands", root + "/conversations/" + run.ConversationID + "/events?profile=ledger",
			root + "/conversations/" + run.ConversationID, root + "/conversations/" + run.ConversationID + "/messages", root + "/runs", root + "/conversations", root + "/approvals?state=all"} {
			w := x.ask("GET", path, "", bearer("a", auth.Operator))
			require.Equal(x.t, 200, w.Code)
			all = append(all, w.Body.String())
		}
	}
	return all
}

func TestNoRouteWithoutAGoodToken(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	before := x.snapshot()
	x.eachRoute(func(method, pattern string) {
		if x.roleOf(method, pattern) == anyone {
			return
		}
		for _, run := range []agent.Run{x.open, nobodys()} {
			missing := x.ask(method, pathOf(pattern, run), bodies[pattern])
			require.Equal(t, `Bearer realm="runledger"`, missing.Header().Get("WWW-Authenticate"), pattern)
			requireProblem(t, missing, 401, "token-needed", "")
			for _, header := range []string{"Authorization: Bearer " + revoked, "Authorization: Bearer s3cret-guess", "Authorization: Basic " + tokenOf("a", auth.Operator)} {
				for _, accept := range []string{"Accept: */*", "Accept: text/event-stream"} {
					w := x.ask(method, pathOf(pattern, run), bodies[pattern], header, accept)
					require.Equal(t, missing.Body.String(), w.Body.String(), pattern)
					require.Equal(t, missing.Header(), w.Header(), pattern)
				}
			}
		}
	})
	require.Equal(t, before, x.snapshot())
}

func TestNoRouteForALowerRole(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	before := x.snapshot()
	x.eachRoute(func(method, pattern string) {
		needed := x.roleOf(method, pattern)
		for _, role := range auth.Roles() {
			if role.Includes(needed) || needed == anyone {
				// Let in: what the question lacks is another matter.
				body := ""
				if method != http.MethodGet {
					body = "{"
				}
				w := x.ask(method, pathOf(pattern, nobodys()), body, bearer("a", role))
				require.NotContains(t, []int{401, 403}, w.Code, "%s %s as %s: %s", method, pattern, role, w.Body)
				continue
			}
			kind := map[auth.Role]string{auth.User: "user-role-needed", auth.Operator: "operator-role-needed"}[needed]
			for _, owner := range []string{"a", agent.AnyOwner} {
				x.requireSameAs(x.open, func(run agent.Run) *httptest.ResponseRecorder {
					w := x.ask(method, pathOf(pattern, run), bodies[pattern], bearer(owner, role))
					requireProblem(t, w, 403, kind, "")
					return w
				})
			}
		}
	})
	require.Equal(t, before, x.snapshot())
}

func TestAnotherOwnersIDsAreNotThere(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	before := x.snapshot()
	x.eachRoute(func(method, pattern string) {
		if !parameter.MatchString(pattern) {
			return
		}
		headers, queries := []string{"Accept: application/json"}, []string{""}
		if strings.HasSuffix(pattern, "/events") {
			headers = append(headers, "Accept: text/event-stream", "Last-Event-ID: 2", "Last-Event-ID: 9")
			queries = append(queries, "?profile=ledger", "?after=1", "?from_sequence=9", "?until=idle")
		}
		for _, victim := range []agent.Run{x.open, x.ended} {
			for _, header := range headers {
				for _, query := range queries {
					w := x.requireSameAs(victim, func(run agent.Run) *httptest.ResponseRecorder {
						return x.ask(method, pathOf(pattern, run)+query, bodies[pattern], bearer("b", auth.Operator), header)
					})
					requireProblem(t, w, 404, "not-found", "")
				}
			}
		}
	})
	require.Equal(t, before, x.snapshot())
}

func TestListsAndCursorsTellNothingOfOthers(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	bee := bearer("b", auth.Operator)
	require.Len(t, document[struct{ Runs []runHead }](t, x.ask("GET", root+"/runs", "", bee)).Runs, 2)
	for _, query := range []string{"?status=queued", "?status=cancelled", "?in_doubt=true", "?agent=default", "?limit=1"} {
		body := x.ask("GET", root+"/runs"+query, "", bee).Body.String()
		require.NotContains(t, body, x.open.RunID)
		require.NotContains(t, body, x.ended.RunID)
	}
	require.Len(t, document[struct{ Approvals []agent.Approval }](t, x.ask("GET", root+"/approvals", "", bee)).Approvals, 2)
	for _, ask := range []func(agent.Run) string{
		func(r agent.Run) string { return root + "/runs?before=" + r.RunID },
		func(r agent.Run) string { return root + "/runs?before=" + r.RunID + "&limit=1" },
		func(r agent.Run) string { return root + "/runs?conversation_id=" + r.ConversationID },
		func(r agent.Run) string {
			return root + "/runs?before=" + x.newer.RunID + "&conversation_id=" + r.ConversationID
		},
		func(r agent.Run) string { return root + "/conversations?before=" + r.ConversationID },
		func(r agent.Run) string { return root + "/approvals?state=all&run_id=" + r.RunID },
		func(r agent.Run) string { return root + "/approvals?state=all&before=" + r.MessageID },
		// Its own paths with the other's ids in them.
		func(r agent.Run) string { return runPath(x.older.RunID) + "/commands/" + r.RunID },
		func(r agent.Run) string { return runPath(x.older.RunID) + "/events?run_id=" + r.RunID },
		func(r agent.Run) string { return runPath(x.older.RunID) + "/commands/..%2F..%2F" + r.RunID },
		func(r agent.Run) string { return root + "/runs/x%2F..%2F" + r.RunID },
	} {
		w := x.requireSameAs(x.open, func(run agent.Run) *httptest.ResponseRecorder { return x.ask("GET", ask(run), "", bee) })
		require.NotContains(t, w.Body.String(), "6*7 of a")
	}
}

func TestNothingStartsInAnotherOwnersConversation(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	before := x.snapshot()
	for pattern, body := range bodies {
		if strings.Contains(pattern, "{") || pattern == documentsPath {
			continue
		}
		for _, key := range []string{"", "Idempotency-Key: k"} {
			x.requireSameAs(x.open, func(run agent.Run) *httptest.ResponseRecorder {
				in := strings.TrimSuffix(body, "}") + `,"conversation_id":"` + run.ConversationID + `"}`
				w := x.ask("POST", pattern, in, bearer("b", auth.Operator), key)
				requireProblem(t, w, 404, "not-found", "/conversation_id")
				return w
			})
		}
	}
	require.Equal(t, before, x.snapshot())
}

func TestKeysAndMessageIDsAreTheOwnersOwn(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	key := "Idempotency-Key: one-for-both"
	body := `{"input":"x","wait":0,"message_id":"` + x.open.MessageID + `"}`
	mine := document[agent.Run](t, x.ask("POST", root+"/run", `{"input":"y","wait":0}`, key, bearer("a", auth.User)))
	var theirs []agent.Run
	for range 2 {
		w := x.ask("POST", root+"/run", body, key, bearer("b", auth.User))
		require.Equal(t, 202, w.Code, "%s", w.Body)
		theirs = append(theirs, document[agent.Run](t, w))
	}
	require.NotEqual(t, mine.RunID, theirs[0].RunID)
	require.NotEqual(t, mine.ConversationID, theirs[0].ConversationID)
	require.Equal(t, theirs[0].RunID, theirs[1].RunID)
	// A key of those who work for every owner is nobody else's either.
	in := `{"input":"x","wait":0,"conversation_id":"` + x.open.ConversationID + `"}`
	ours := document[agent.Run](t, x.ask("POST", root+"/run", in, key, bearer(agent.AnyOwner, auth.Operator)))
	require.NotContains(t, []string{mine.RunID, theirs[0].RunID}, ours.RunID)
}

// A message that is named as another owner's is, and whatever becomes of it, leaves that one alone.
func TestMessageNamedAsAnotherOwners(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	before := x.snapshot()
	for _, strategy := range []string{"", `"strategy":"enqueue",`, `"strategy":"interrupt",`} {
		run := x.start("b")
		for _, victim := range []agent.Run{x.open, x.ended} {
			w := x.ask("POST", root+"/run", `{"input":"x","wait":0,`+strategy+`"conversation_id":"`+run.ConversationID+`","message_id":"`+victim.MessageID+`"}`, bearer("b", auth.User))
			if strategy == "" {
				require.Equal(t, 202, w.Code, "%s", w.Body)
			}
			if w.Code == 202 {
				x.ask("POST", runPath(document[agent.Run](t, w).RunID)+"/cancel", "", bearer("b", auth.User))
			}
		}
		x.ask("POST", runPath(run.RunID)+"/cancel", "", bearer("b", auth.User))
	}
	require.Equal(t, before, x.snapshot())
}

func TestTokenForEveryOwner(t *testing.T) {
	t.Parallel()
	x := newAttack(t)
	star := bearer(agent.AnyOwner, auth.Operator)
	x.eachRoute(func(method, pattern string) {
		if method == http.MethodGet && (len(parameter.FindAllString(pattern, -1)) == 1) {
			for _, run := range []agent.Run{x.open, x.older} {
				require.Equal(t, 200, x.ask(method, pathOf(pattern, run), "", star).Code, pattern)
			}
		}
	})
	require.Len(t, document[struct{ Runs []runHead }](t, x.ask("GET", root+"/runs", "", star)).Runs, 4)
	page := document[struct{ Runs []runHead }](t, x.ask("GET", root+"/runs?before="+x.ended.RunID, "", star)).Runs
	require.Equal(t, []string{x.open.RunID, x.older.RunID}, []string{page[0].RunID, page[1].RunID})

	for pattern, body := range bodies {
		if !strings.Contains(pattern, "{") {
			pointer := "/conversation_id"
			if pattern == documentsPath {
				pointer = "/documents"
			}
			requireProblem(t, x.ask("POST", pattern, body, star), 422, "invalid-request", pointer)
		}
	}
	run := document[agent.Run](t, x.ask("POST", root+"/run", `{"input":"x","wait":0,"conversation_id":"`+x.open.ConversationID+`"}`, star))
	require.Equal(t, 200, x.ask("GET", runPath(run.RunID), "", bearer("a", auth.Viewer)).Code, "it is the conversation's owner's")
	require.Equal(t, 404, x.ask("GET", runPath(run.RunID), "", bearer("b", auth.Viewer)).Code)
	require.Equal(t, 200, x.ask("POST", runPath(run.RunID)+"/cancel", "", star).Code)
	require.Contains(t, x.ask("GET", runPath(run.RunID)+"/events?profile=ledger", "", star).Body.String(), `"by":"*-operator"`)
}
