package mcp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"runledger/agent"
)

const (
	defaultStartTimeout = time.Minute // npx may have to fetch the server first
	defaultMaxOutput    = 1 << 20
	defaultGrace        = 2 * time.Second
)

// Config describes one server. Secrets do not stand in it, only the names of the environment variables that hold them.
type Config struct {
	// Name comes before the names of the server's tools: "name/tool". It is [A-Za-z0-9_-]{1,64}.
	Name string `yaml:"-"`
	// Command is the program with its arguments; Dir is where it runs, the working directory when empty.
	Command []string `yaml:"command"`
	Dir     string   `yaml:"dir"`
	// Env are variables of the server, in plain text. EnvFrom maps a variable of the server to the variable of this process
	// that holds its value. Of everything else in this process's environment the server gets only what programs need to
	// run at all (PATH, HOME, the locale, certificates): API keys are not for every server to see.
	Env     map[string]string `yaml:"env"`
	EnvFrom map[string]string `yaml:"env_from"`
	// URL is the address of a server that is reached over streamable HTTP, in the place of a command. HeadersEnv maps a header of
	// its requests to the variable of this process that holds the whole value, as in "Bearer ...". Redirects are not followed.
	URL        string            `yaml:"url"`
	HeadersEnv map[string]string `yaml:"headers_env"`
	// Effects gives the effect class of tools by the server's own name of them; it wins over the tool's annotations.
	Effects map[string]agent.EffectClass `yaml:"effects"`
	// Approve gives predicates on calls that need somebody's approval, as in [tool.Spec], by the server's own name of a tool.
	Approve map[string]string `yaml:"approve"`
	// Lane gives the lane of calls, as in [tool.Spec], by the server's own name of a tool.
	Lane map[string]agent.Lane `yaml:"lane"`
	// Timeout bounds one call, as in [tool.Spec], by the server's own name of a tool.
	Timeout map[string]agent.Duration `yaml:"timeout"`
	// MaxConcurrent and Rate bound the calls of all tools of the server together, over all workers; zero for any number.
	MaxConcurrent int        `yaml:"max_concurrent"`
	Rate          agent.Rate `yaml:"rate"`
	// Reconcile says, by the server's own name of a tool, how to find out what became of a call of it whose answer was lost. A
	// tool that is not named cannot reconcile.
	Reconcile map[string]Reconcile `yaml:"reconcile"`
	// StartTimeout bounds the start up to the list of tools; 0 means a minute.
	StartTimeout time.Duration `yaml:"start_timeout"`
	// MaxOutputBytes is how much of a tool's output is kept; 0 means 1 MiB.
	MaxOutputBytes int `yaml:"max_output_bytes"`
	// Log gets what the server writes to its standard error, at debug level, and what happens to it. nil logs nothing.
	Log *slog.Logger `yaml:"-"`
	// grace is how long a server has to end by itself after its input is closed, and again after SIGTERM, and how long a
	// message to it may be on its way after its call was cancelled. Tests shorten it.
	grace time.Duration
}

var validServerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// complete checks a configuration and fills in its defaults.
func (c Config) complete() (Config, error) {
	switch {
	case !validServerName.MatchString(c.Name):
		return c, fmt.Errorf("%q is not a server name: want 1 to 64 of A-Z a-z 0-9 _ -", c.Name)
	case c.URL != "" && len(c.Command) > 0:
		return c, errors.New("has both a command and a url; want one of the two")
	case c.URL == "" && len(c.HeadersEnv) > 0:
		return c, errors.New("headers_env goes with a url")
	case c.URL != "" && (c.Dir != "" || len(c.Env) > 0 || len(c.EnvFrom) > 0):
		return c, errors.New("dir, env and env_from go with a command")
	case c.URL == "" && (len(c.Command) == 0 || c.Command[0] == ""):
		return c, errors.New("the command is missing")
	case c.StartTimeout < 0:
		return c, errors.New("start_timeout is negative")
	case c.MaxOutputBytes < 0:
		return c, errors.New("max_output_bytes is negative")
	}
	if c.URL != "" {
		if err := checkURL(c.URL); err != nil {
			return c, err
		}
	}
	if err := c.limit().Check(); err != nil {
		return c, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Effects)) {
		if !c.Effects[name].Valid() {
			return c, fmt.Errorf("effects: %s: %q is not an effect class", name, c.Effects[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Reconcile)) {
		if err := c.Reconcile[name].check(); err != nil {
			return c, fmt.Errorf("reconcile: %s: %w", name, err)
		}
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = defaultStartTimeout
	}
	if c.MaxOutputBytes == 0 {
		c.MaxOutputBytes = defaultMaxOutput
	}
	if c.grace == 0 {
		c.grace = defaultGrace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("mcp_server", c.Name)
	return c, nil
}

// limit is that of the server's tools.
func (c Config) limit() agent.CallLimit {
	return agent.CallLimit{Name: c.Name + "/*", MaxConcurrent: c.MaxConcurrent, Rate: c.Rate}
}

// Check says what is wrong with a configuration, as Connect would, without starting anything.
func (c Config) Check() error {
	_, err := c.complete()
	return err
}

// inherited are the variables of this process that every server gets.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE",
	"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
}

// environment is the server's environment. The error names the variable that is missing.
func (c Config) environment() ([]string, error) {
	env := map[string]string{}
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	maps.Copy(env, c.Env)
	for _, name := range slices.Sorted(maps.Keys(c.EnvFrom)) {
		value, ok := os.LookupEnv(c.EnvFrom[name])
		if !ok {
			return nil, fmt.Errorf("env_from: %s: the environment variable %s is not set", name, c.EnvFrom[name])
		}
		env[name] = value
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list, nil
}
