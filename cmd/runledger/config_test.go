package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"runledger/agent"
	"runledger/model"
	"runledger/policy"
	"runledger/tool"
	"runledger/tool/builtin"
	"runledger/tool/mcp"
)

func TestConfigExample(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "runledger.example.yaml"))
	require.NoError(t, err)
	cfg, err := parseConfig(raw)
	require.NoError(t, err)
	agents := cfg.blueprints()
	require.Len(t, agents, 1)
	require.Equal(t, agent.Limits{MaxSteps: 50, MaxParallel: 8, Timeout: agent.Duration(time.Hour)}, agents[0].Limits)
	require.Equal(t, agent.History{MaxTokens: agent.DefaultHistoryTokens}, agents[0].History)
	require.Equal(t, "gpt-5-mini", agents[0].Model.Model)
	require.Equal(t, builtin.Limit{MaxConcurrent: 4, Rate: tool.Rate{Calls: 10, Per: time.Second}}, cfg.Tools.HTTP.Limit)
	require.Len(t, cfg.Tools.HTTP.Reconcile, 1)
	require.Equal(t, builtin.HTTPReconcile{Host: "api.example.org", Method: "POST", PathPrefix: "/v1/charges",
		URL:        "https://api.example.org/v1/charges?idempotency_key={key}",
		HeadersEnv: map[string]string{"Authorization": "PAYMENTS_AUTHORIZATION"}, Found: "/data/0", Output: "/data/0"}, cfg.Tools.HTTP.Reconcile[0])
}

// The tour of the README begins with this file, and without a key.
func TestConfigOfTheTour(t *testing.T) {
	cfg, err := loadConfig(filepath.Join("..", "..", "docs", "tour.yaml"))
	require.NoError(t, err)
	agents := cfg.blueprints()
	require.Len(t, agents, 4)
	for _, a := range agents {
		switch a.Name {
		case "careful":
			require.Equal(t, policy.Ask, a.Policy.Rules[0].Decision)
		case "frugal":
			require.Equal(t, 1, a.Limits.MaxToolCalls)
		}
	}
}

// What the example shows in comments must work when somebody takes the comment signs away.
func TestConfigExampleOfServers(t *testing.T) {
	cfg := uncommented(t, "# mcp_servers:")
	require.Len(t, cfg.MCPServers, 3)
	require.Equal(t, map[string]string{"Authorization": "REMOTE_MCP_AUTHORIZATION"}, cfg.MCPServers["remote"].HeadersEnv)
	require.Equal(t, 4, cfg.MCPServers["everything"].MaxConcurrent)
	require.Equal(t, agent.Duration(10*time.Minute), cfg.MCPServers["everything"].Timeout["longRunningOperation"])
	require.Equal(t, mcp.Reconcile{Tool: "find_charge", Arguments: map[string]any{"key": "{key}", "account": "{arguments/account}"},
		Found: "/charge", Output: "/charge"}, cfg.MCPServers["payments"].Reconcile["charge"])
}

func TestConfigExampleOfTokens(t *testing.T) {
	cfg := uncommented(t, "# auth:")
	require.Len(t, cfg.Auth.Tokens, 2)
	t.Setenv("RUNLEDGER_TOKEN_TEAM_A", "0123456789abcdef")
	_, err := cfg.keyring()
	require.NoError(t, err)
}

func TestConfigExampleOfTheAPI(t *testing.T) {
	cfg := uncommented(t, "# api:")
	require.Equal(t, []string{"https://app.example.org", "http://localhost:5173"}, cfg.API.CORSOrigins)
	require.Equal(t, 1000, cfg.API.MaxStreams)
}

func TestConfigExampleOfApprovals(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "runledger.example.yaml"))
	require.NoError(t, err)
	agents, rest, _ := strings.Cut(string(raw), "\n# mcp_servers:")
	cfg, err := parseConfig([]byte(strings.ReplaceAll(agents, "\n    # ", "\n    ") + strings.Replace(rest, "    # approve:", "    approve:", 1)))
	require.NoError(t, err)
	require.Equal(t, agent.DefaultApprovalTimeout, cfg.blueprints()[0].ApprovalTimeout)
	rules := cfg.blueprints()[0].Policy.Rules
	require.Len(t, rules, 3)
	require.Equal(t, "args.amount > 100", rules[1].When)
	require.NotEmpty(t, cfg.Tools.HTTP.Approve)
}

// uncommented is a section of the example without its comment signs.
func uncommented(t *testing.T, first string) *config {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "runledger.example.yaml"))
	require.NoError(t, err)
	_, block, found := strings.Cut(string(raw), "\n"+first)
	require.True(t, found)
	block, _, _ = strings.Cut(first+block, "\n\n")
	var plain strings.Builder
	for line := range strings.Lines(block) {
		plain.WriteString(strings.TrimPrefix(line, "# "))
	}
	cfg, err := parseConfig([]byte(plain.String()))
	require.NoError(t, err)
	return cfg
}

func TestPolicyOfAnAgent(t *testing.T) {
	cfg, err := parseConfig([]byte(`
models: {default: {provider: scripted}}
agents:
  careful:
    policy:
      - {tools: ["bank/*"], effects: [external], decision: forbid, reason: "read only"}
      - {kinds: [llm], decision: execute}
`))
	require.NoError(t, err)
	require.Equal(t, &agent.Policy{Rules: []agent.PolicyRule{
		{Tools: []string{"bank/*"}, Effects: []agent.EffectClass{agent.External}, Decision: policy.Forbid, Reason: "read only"},
		{Kinds: []agent.CommandKind{agent.ModelCommand}, Decision: policy.Execute},
	}}, cfg.blueprints()[0].Policy)
}

func TestApprovalsOfAConfiguration(t *testing.T) {
	cfg, err := parseConfig([]byte(`
models: {default: {provider: scripted}}
agents:
  careful:
    approval_timeout: 30m
    policy:
      - {tools: ["bank/*"], when: "args.amount > 100", decision: ask, reason: "more than 100", expires: 2h}
      - {kinds: [tool], effects: [external], decision: ask}
mcp_servers: {bank: {command: [bank-mcp], approve: {close: "true"}}}
tools: {http_request: {approve: 'args.method != "GET"'}, clock: {approve: "true"}}
`))
	require.NoError(t, err)
	blueprint := cfg.blueprints()[0]
	require.Equal(t, agent.Duration(30*time.Minute), blueprint.ApprovalTimeout)
	require.Equal(t, []agent.PolicyRule{
		{Tools: []string{"bank/*"}, When: "args.amount > 100", Decision: policy.Ask, Reason: "more than 100", Expires: agent.Duration(2 * time.Hour)},
		{Kinds: []agent.CommandKind{agent.ToolCommand}, Effects: []agent.EffectClass{agent.External}, Decision: policy.Ask},
	}, blueprint.Policy.Rules)
	tools, err := builtin.Tools(cfg.Tools)
	require.NoError(t, err)
	set, err := tool.NewSet(tools...)
	require.NoError(t, err)
	approve := map[string]string{}
	for _, ref := range set.Refs() {
		approve[ref.Name] = ref.Approve
	}
	require.Equal(t, map[string]string{"calculator": "", "clock": "true", "http_request": `args.method != "GET"`}, approve)
	require.Equal(t, map[string]string{"close": "true"}, cfg.MCPServers["bank"].Approve)
}

func TestLimitsOfAnAgent(t *testing.T) {
	cfg, err := parseConfig([]byte(`
models: {default: {provider: scripted}}
agents:
  bounded:
    limits: {max_steps: 5, max_tool_calls: 6, max_tokens: 7, max_repeats: 8, max_parallel: 9, timeout: 10m, on_limit: fail}
    require_plan: true
`))
	require.NoError(t, err)
	bounded := cfg.blueprints()[0]
	require.Equal(t, agent.Limits{MaxSteps: 5, MaxToolCalls: 6, MaxTokens: 7, MaxRepeats: 8, MaxParallel: 9,
		Timeout: agent.Duration(10 * time.Minute), OnLimit: agent.OnLimitFail}, bounded.Limits)
	require.True(t, bounded.RequirePlan)
}

func TestConfigOfNothing(t *testing.T) {
	noModelInTheEnvironment(t)
	cfg, err := parseConfig(nil)
	require.NoError(t, err)
	require.Equal(t, []agent.Blueprint{{Name: "default", Mode: agent.ModePlan, Tools: []string{"*"},
		Model: agent.ModelRef{Name: "default", Provider: "scripted", Model: "scripted"}}}, cfg.blueprints())
}

func noModelInTheEnvironment(t *testing.T) {
	t.Helper()
	for _, v := range vendors() {
		for _, name := range []string{v.keyEnv, v.baseURLEnv, v.modelEnv} {
			t.Setenv(name, "")
		}
	}
}

func TestModelOfTheEnvironment(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "k")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
	t.Setenv("OPENAI_MODEL", "local")
	cfg, err := parseConfig(nil)
	require.NoError(t, err)
	require.Equal(t, modelConfig{Provider: "openai", Model: "local", BaseURL: "http://127.0.0.1:1/v1", APIKeyEnv: "OPENAI_API_KEY"}, cfg.Models["default"])
	require.Empty(t, cfg.goOffline())
}

func TestVendorsOfTheEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		set  map[string]string
		want modelConfig
	}{
		"Anthropic":           {map[string]string{"ANTHROPIC_API_KEY": "k"}, modelConfig{Provider: "anthropic", Model: "claude-sonnet-5-5", APIKeyEnv: "ANTHROPIC_API_KEY"}},
		"Gemini, named model": {map[string]string{"GEMINI_API_KEY": "k", "GEMINI_MODEL": "m"}, modelConfig{Provider: "gemini", Model: "m", APIKeyEnv: "GEMINI_API_KEY"}},
		"an address alone":    {map[string]string{"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, modelConfig{Provider: "anthropic", Model: "claude-sonnet-5-5", BaseURL: "http://127.0.0.1:1", APIKeyEnv: "ANTHROPIC_API_KEY"}},
		"OpenAI comes first":  {map[string]string{"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}, modelConfig{Provider: "openai", Model: "gpt-5-mini", APIKeyEnv: "OPENAI_API_KEY"}},
	} {
		t.Run(name, func(t *testing.T) {
			noModelInTheEnvironment(t)
			for variable, value := range tt.set {
				t.Setenv(variable, value)
			}
			cfg, err := parseConfig(nil)
			require.NoError(t, err)
			require.Equal(t, tt.want, cfg.Models["default"])
			require.Empty(t, cfg.goOffline())
			_, err = cfg.clients()
			require.NoError(t, err)
		})
	}
}

// Each vendor's client asks with the key that its configuration names, or its vendor's own; the vendor's own goes to no other
// address.
func TestClientsAndTheirKeys(t *testing.T) {
	noModelInTheEnvironment(t)
	for _, v := range vendors() {
		t.Setenv(v.keyEnv, "the-vendors-key")
	}
	t.Setenv("GATEWAY_KEY", "the-gateways-key")
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	for provider, header := range map[string]string{"openai": "Authorization", "anthropic": "X-Api-Key", "gemini": "X-Goog-Api-Key"} {
		t.Run(provider, func(t *testing.T) {
			cfg, err := parseConfig(fmt.Appendf(nil, "models:\n  default: {provider: %[1]s, model: m}\n  open: {provider: %[1]s, model: m, base_url: %[2]q}\n"+
				"  gateway: {provider: %[1]s, model: m, base_url: %[2]q, api_key_env: GATEWAY_KEY}\n", provider, server.URL))
			require.NoError(t, err)
			v, ok := vendorOf(provider)
			require.True(t, ok)
			require.Equal(t, v.keyEnv, cfg.Models["default"].APIKeyEnv)
			clients, err := cfg.clients()
			require.NoError(t, err)
			for name, want := range map[string]string{"open": "", "gateway": "the-gateways-key"} {
				_, err := clients(name).Generate(t.Context(), model.Request{Model: "m", Messages: []model.Message{{Role: model.User, Text: "Hi"}}}, nil)
				require.ErrorContains(t, err, "401")
				require.Equal(t, want, strings.TrimPrefix((<-got).Get(header), "Bearer "), name)
			}
		})
	}
}

func TestGoOffline(t *testing.T) {
	t.Setenv("SOME_KEY", "")
	cfg, err := parseConfig([]byte("models: {default: {provider: openai, model: m, api_key_env: SOME_KEY}}"))
	require.NoError(t, err)
	_, err = cfg.clients()
	require.ErrorContains(t, err, `"SOME_KEY"`)
	require.Equal(t, []string{"default"}, cfg.goOffline())
	clients, err := cfg.clients()
	require.NoError(t, err)
	require.NotNil(t, clients("default"))
	require.Nil(t, clients("other"))
}

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]struct{ yaml, want string }{
		"policy decision":     {"agents: {default: {policy: [{decision: maybe}]}}\n", `agents.default.policy: rule 1: decision "maybe": want execute, forbid or ask`},
		"asks about anything": {"agents: {default: {policy: [{decision: ask}]}}\n", "agents.default.policy: rule 1: decision ask: only the calls of tools can be approved"},
		"a bad predicate": {"agents: {default: {policy: [{tools: [x], decision: ask}, {tools: [x], when: 'args.n >', decision: ask}]}}\n",
			`agents.default.policy: rule 2: when: predicate "args.n >": unexpected token EOF (1:8)`},
		"expires of another rule":   {"agents: {default: {policy: [{tools: [x], expires: 1h, decision: forbid}]}}\n", "rule 1: expires"},
		"a negative timeout":        {"agents: {default: {approval_timeout: -1h}}\n", `duration "-1h": must not be negative`},
		"a tool's bad predicate":    {"tools: {http_request: {approve: 'arg.method'}}\n", `tools.http_request.approve: predicate "arg.method": unknown name arg (1:1)`},
		"a server's bad predicate":  {"mcp_servers: {s: {command: [x], approve: {t: '1 +'}}}\n", `mcp_servers.s.approve.t: predicate "1 +"`},
		"a predicate without words": {"mcp_servers: {s: {command: [x], approve: {t: ''}}}\n", `mcp_servers.s.approve.t: predicate ""`},
		"policy key":                {"agents:\n  default:\n    policy: [{tool: x, decision: forbid}]\n", "line 3: unknown key tool"},
		"unknown key":               {"models:\n  default: {provider: scripted}\nagent: {}\n", "line 3: unknown key agent"},
		"unknown nested key":        {"agents:\n  default:\n    mod: plan\n", "line 3: unknown key mod"},
		"any origin":                {"api: {cors_origins: [https://a.example, '*']}\n", `api.cors_origins[1]: origin "*": want scheme://host`},
		"no number of streams":      {"api: {max_streams: -1}\n", "api.max_streams: -1"},
		"wrong type":                {"agents:\n  default:\n    limits: {max_steps: many}\n", "line 3"},
		"duration without":          {"agents: {default: {limits: {timeout: 10}}}", `duration "10"`},
		"unknown provider":          {"models: {default: {provider: magic, model: m}}", "models.default.provider"},
		"tokens where none count":   {"models: {default: {provider: openai, model: m, max_tokens: 5}}", "models.default.max_tokens"},
		"less than no tokens":       {"models: {default: {provider: anthropic, model: m, max_tokens: -5}}", "models.default.max_tokens: -5"},
		"missing model":             {"models: {default: {provider: openai}}", "models.default.model"},
		"agent without model":       {"models: {x: {provider: scripted}}\nagents: {a: {model: y}}", "agents.a.model"},
		"unknown mode":              {"agents: {a: {mode: dream}}", "agents.a.mode"},
		"negative limit":            {"agents: {a: {limits: {max_steps: -1}}}", "agents.a.limits.max_steps: must not be negative"},
		"small history":             {"agents: {a: {history: {max_tokens: 999}}}", "agents.a.history.max_tokens: 999; want at least 1000"},
		"negative history":          {"agents: {a: {history: {max_tokens: -1}}}", "agents.a.history.max_tokens"},
		"server without a way":      {"mcp_servers: {s: {}}", "mcp_servers.s"},
		"negative concurrency":      {"tools: {clock: {max_concurrent: -1}}", "tools.clock: max_concurrent: -1"},
		"a rate without a time":     {"tools: {http_request: {rate: 10}}", `rate "10": want calls per time`},
		"a server's rate":           {"mcp_servers: {s: {command: [x], rate: 0/s}}", "rate: 0 calls in 1s"},
		"a server's concurrency":    {"mcp_servers: {s: {command: [x], max_concurrent: -1}}", "mcp_servers.s: max_concurrent: -1"},
		"bad effect":                {"mcp_servers: {s: {command: [x], effects: {t: maybe}}}", "mcp_servers.s"},
		"bad http effect":           {"tools: {http_request: {effects: {GET: maybe}}}", "tools"},
		"not YAML":                  {"{", "yaml"},
		"two documents":             {"models: {default: {provider: scripted}}\n---\nagents: {}\n", "more than one document"},
		"negative tokens":           {"agents: {a: {limits: {max_tokens: -1}}}", "agents.a.limits.max_tokens: must not be negative"},
		"on_limit":                  {"agents: {a: {limits: {on_limit: stop}}}", `agents.a.limits.on_limit: "stop": want park or fail`},
		"react with a plan":         {"agents: {a: {mode: react, require_plan: true}}", "agents.a.require_plan: an agent of mode react works without a plan"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseConfig([]byte(c.yaml))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestBadReconcileConfig(t *testing.T) {
	for name, c := range map[string]struct{ yaml, want string }{
		"unknown key of a rule": {"tools:\n  http_request:\n    reconcile:\n      - host: a.example\n        metod: POST\n", "line 5: unknown key metod"},
		"bad rule":              {"tools:\n  http_request:\n    reconcile: [{host: a.example, method: POST, url: /charges}]\n", "tools: http_request: reconcile[0].url: \"/charges\": neither"},
		"status that is a text": {"tools:\n  http_request:\n    reconcile:\n      - found_status: [ok]\n", "line 4"},
		"unknown key of a server's rule": {"mcp_servers:\n  s:\n    command: [x]\n    reconcile:\n      charge: {tool: find, argument: {}}\n",
			"line 5: unknown key argument"},
		"bad rule of a server": {"mcp_servers: {s: {command: [x], reconcile: {charge: {tool: find}}}}", "mcp_servers.s: reconcile: charge: arguments: {key} stands nowhere"},
		"arguments with a key that is no text": {"mcp_servers: {s: {command: [x], reconcile: {charge: {tool: find, arguments: {a: {1: \"{key}\"}}}}}}",
			"mcp_servers.s: reconcile: charge: arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseConfig([]byte(c.yaml))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestMissingConfigFile(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := loadConfig("")
	require.NoError(t, err)
	_, err = loadConfig("nowhere.yaml")
	require.ErrorContains(t, err, "nowhere.yaml")
}
