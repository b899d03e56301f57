package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"runledger/agent"
	"runledger/api"
	"runledger/policy"
	"runledger/predicate"
	"runledger/tool/builtin"
	"runledger/tool/mcp"
)

const defaultConfigFile = "runledger.yaml"

// config is runledger.yaml.
type config struct {
	Models     map[string]modelConfig `yaml:"models"`
	Agents     map[string]agentConfig `yaml:"agents"`
	MCPServers map[string]mcp.Config  `yaml:"mcp_servers"`
	Tools      builtin.Config         `yaml:"tools"`
	API        apiConfig              `yaml:"api"`
	Retention  retentionConfig        `yaml:"retention"`
	// Auth is nil where everybody who reaches the API is its operator.
	Auth *authConfig `yaml:"auth"`
}

// apiConfig is for those who call the API.
type apiConfig struct {
	// CORSOrigins are the origins whose pages may call the API from a browser.
	CORSOrigins []string `yaml:"cors_origins"`
	// MaxStreams bounds the streams of one owner at a time; 0 leaves it to the API.
	MaxStreams int `yaml:"max_streams"`
}

type modelConfig struct {
	Provider  string `yaml:"provider"`
	Model     string `yaml:"model"`
	BaseURL   string `yaml:"base_url"`
	APIKeyEnv string `yaml:"api_key_env"`
	// MaxTokens bounds an answer for a vendor that wants a bound.
	MaxTokens int `yaml:"max_tokens"`
}

type agentConfig struct {
	Model        string       `yaml:"model"`
	Mode         agent.Mode   `yaml:"mode"`
	Instructions string       `yaml:"instructions"`
	Tools        []string     `yaml:"tools"`
	Limits       limitsConfig `yaml:"limits"`
	// RequirePlan: a run has to bring its plan; none is made for it.
	RequirePlan bool `yaml:"require_plan"`
	// History bounds what a prompt tells of the conversation.
	History historyConfig `yaml:"history"`
	// Policy are rules on the agent's commands; the first that matches decides, and what none matches is executed.
	Policy []agent.PolicyRule `yaml:"policy"`
	// ApprovalTimeout is how long an approval is waited for where no rule says.
	ApprovalTimeout agent.Duration `yaml:"approval_timeout"`
	// Lane is that of calls which may be repeated, where neither node nor tool names one.
	Lane agent.Lane `yaml:"lane"`
	// Workflows are those that plans may start: "queue/name", "queue/*" or "*".
	Workflows []string `yaml:"workflows"`
}

type limitsConfig struct {
	MaxSteps     int            `yaml:"max_steps"`
	MaxToolCalls int            `yaml:"max_tool_calls"`
	MaxTokens    int            `yaml:"max_tokens"`
	MaxRepeats   int            `yaml:"max_repeats"`
	MaxParallel  int            `yaml:"max_parallel"`
	Timeout      agent.Duration `yaml:"timeout"`
	OnLimit      agent.OnLimit  `yaml:"on_limit"`
}

type historyConfig struct {
	MaxTokens int `yaml:"max_tokens"`
}

// loadConfig reads the named file, or runledger.yaml in the working directory when there is one, and fills in the
// defaults. The error names the line of a key that does not exist.
func loadConfig(path string) (*config, error) {
	name := path
	if name == "" {
		name = defaultConfigFile
	}
	raw, err := os.ReadFile(name)
	if path == "" && errors.Is(err, fs.ErrNotExist) {
		raw, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", name, err)
	}
	return cfg, nil
}

// goType is how the YAML library names our structs in its errors; users know them by their keys only.
var goType = regexp.MustCompile(` in type \w+\.(\w+?)(Config)?$`)

func parseConfig(raw []byte) (*config, error) {
	cfg := new(config)
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(cfg); err != nil && !errors.Is(err, io.EOF) {
		var wrong *yaml.TypeError
		if !errors.As(err, &wrong) {
			return nil, err
		}
		for i, line := range wrong.Errors {
			wrong.Errors[i] = strings.Replace(goType.ReplaceAllString(line, " ($1)"), "field ", "unknown key ", 1)
		}
		return nil, errors.New(strings.Join(wrong.Errors, "; "))
	}
	var extra any
	if err := dec.Decode(&extra); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	cfg.fillIn()
	return cfg, cfg.check()
}

// fillIn adds what a configuration may leave out: the model of the environment, and one agent with every tool.
func (c *config) fillIn() {
	if len(c.Models) == 0 {
		c.Models = map[string]modelConfig{"default": environmentModel()}
	}
	for name, m := range c.Models {
		// The vendor's own key, but only for the vendor's own address.
		if v, ok := vendorOf(m.Provider); ok && m.APIKeyEnv == "" && m.BaseURL == "" {
			m.APIKeyEnv = v.keyEnv
			c.Models[name] = m
		}
	}
	if len(c.Agents) == 0 {
		c.Agents = map[string]agentConfig{"default": {Mode: agent.ModePlan, Tools: []string{"*"}}}
	}
	for name, a := range c.Agents {
		if a.Model == "" {
			a.Model = "default"
		}
		if a.Mode == "" {
			a.Mode = agent.ModePlan
		}
		c.Agents[name] = a
	}
}

func (c *config) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m := c.Models[name]
		if !slices.Contains(providers(), m.Provider) {
			bad("models.%s.provider: %q; want one of %s", name, m.Provider, strings.Join(providers(), ", "))
		}
		if m.Model == "" && m.Provider != scriptedProvider {
			bad("models.%s.model: missing", name)
		}
		if m.MaxTokens < 0 || m.MaxTokens > 0 && m.Provider != "anthropic" {
			bad("models.%s.max_tokens: %d; want a number of tokens, for provider anthropic only", name, m.MaxTokens)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		a := c.Agents[name]
		if _, ok := c.Models[a.Model]; !ok {
			bad("agents.%s.model: there is no model %q", name, a.Model)
		}
		if a.Mode != agent.ModePlan && a.Mode != agent.ModeReact {
			bad("agents.%s.mode: %q; want plan or react", name, a.Mode)
		}
		agent.Limits(a.Limits).Check(func(field, message string) { bad("agents.%s.limits.%s: %s", name, field, message) })
		if a.RequirePlan && a.Mode == agent.ModeReact {
			bad("agents.%s.require_plan: an agent of mode react works without a plan", name)
		}
		if !a.Lane.Valid() {
			bad("agents.%s.lane: %q; want normal or fast", name, a.Lane)
		}
		if n := a.History.MaxTokens; n != 0 && n < agent.MinHistoryTokens {
			bad("agents.%s.history.max_tokens: %d; want at least %d", name, n, agent.MinHistoryTokens)
		}
		if err := policy.Check(a.policy()); err != nil {
			bad("agents.%s.policy: %w", name, err)
		}
		if err := predicate.CheckPolicy(a.policy()); err != nil {
			bad("agents.%s.policy: %w", name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.MCPServers)) {
		server := c.MCPServers[name]
		server.Name = name
		if err := server.Check(); err != nil {
			bad("mcp_servers.%s: %w", name, err)
		}
		for _, tool := range slices.Sorted(maps.Keys(server.Lane)) {
			if lane := server.Lane[tool]; !lane.Valid() {
				bad("mcp_servers.%s.lane.%s: %q; want normal or fast", name, tool, lane)
			}
		}
		for _, tool := range slices.Sorted(maps.Keys(server.Approve)) {
			if err := predicate.Check(server.Approve[tool]); err != nil {
				bad("mcp_servers.%s.approve.%s: %w", name, tool, err)
			}
		}
		c.MCPServers[name] = server
	}
	tools, err := builtin.Tools(c.Tools)
	if err != nil {
		bad("tools: %w", err)
	}
	for _, t := range tools {
		if spec := t.Spec(); !spec.Lane.Valid() {
			bad("tools.%s.lane: %q; want normal or fast", spec.Name, spec.Lane)
		}
		if err := t.Spec().Limit.Check(); err != nil {
			bad("tools.%s: %w", t.Spec().Name, err)
		}
		if spec := t.Spec(); spec.Approve != "" {
			if err := predicate.Check(spec.Approve); err != nil {
				bad("tools.%s.approve: %w", spec.Name, err)
			}
		}
	}
	for i, origin := range c.API.CORSOrigins {
		if err := api.CheckOrigin(origin); err != nil {
			bad("api.cors_origins[%d]: %w", i, err)
		}
	}
	if c.API.MaxStreams < 0 {
		bad("api.max_streams: %d; want a number of streams", c.API.MaxStreams)
	}
	c.Retention.check(bad)
	c.Auth.check(bad)
	return errors.Join(errs...)
}

func (a agentConfig) policy() *agent.Policy {
	if len(a.Policy) == 0 {
		return nil
	}
	return &agent.Policy{Rules: a.Policy}
}

// modelRefs are the models as a request may name them.
func (c *config) modelRefs() []agent.ModelRef {
	refs := make([]agent.ModelRef, 0, len(c.Models))
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		refs = append(refs, agent.ModelRef{Name: name, Provider: c.Models[name].Provider, Model: c.Models[name].Model})
	}
	return refs
}

// blueprints are the agents as the API resolves them.
func (c *config) blueprints() []agent.Blueprint {
	agents := make([]agent.Blueprint, 0, len(c.Agents))
	for _, name := range slices.Sorted(maps.Keys(c.Agents)) {
		a := c.Agents[name]
		m := c.Models[a.Model]
		agents = append(agents, agent.Blueprint{Name: name, Mode: a.Mode, Instructions: a.Instructions, Tools: a.Tools,
			Model:       agent.ModelRef{Name: a.Model, Provider: m.Provider, Model: m.Model},
			Limits:      agent.Limits(a.Limits),
			RequirePlan: a.RequirePlan,
			History:     agent.History{MaxTokens: a.History.MaxTokens}, Policy: a.policy(), ApprovalTimeout: a.ApprovalTimeout, Lane: a.Lane, Workflows: a.Workflows})
	}
	return agents
}
