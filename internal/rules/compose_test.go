package rules

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The compose file is checked by parsing it, since tests run where no container engine is.

type composeFile struct {
	Services map[string]composeService
	Volumes  map[string]any
	Configs  map[string]struct{ Content string }
}

type composeService struct {
	Image         string
	Build         string
	ContainerName string `yaml:"container_name"`
	Restart       string
	Command       []string
	Environment   map[string]string
	Ports         []string
	Volumes       []any
	Configs       []struct{ Source, Target string }
	DependsOn     map[string]struct{ Condition string } `yaml:"depends_on"`
	HealthCheck   *struct {
		Test              []string
		Interval, Timeout string
		Retries           int
	}
	Deploy struct{ Replicas string }
}

const (
	healthy   = "service_healthy"
	completed = "service_completed_successfully"
)

func compose(t *testing.T) composeFile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	var c composeFile
	require.NoError(t, yaml.Unmarshal(text, &c))
	return c
}

// setting finds ${NAME:-default}; the tests look at the defaults.
var setting = regexp.MustCompile(`\$\{([A-Z_]+):-([^}]*)\}`)

func defaults(s string) string { return setting.ReplaceAllString(s, "$2") }

func TestComposeStartsInOrder(t *testing.T) {
	want := map[string]map[string]string{
		"postgres":           {},
		"temporal-postgres":  {},
		"temporal-schema":    {"temporal-postgres": healthy},
		"temporal":           {"temporal-schema": completed},
		"temporal-namespace": {"temporal": healthy},
		"temporal-ui":        {"temporal": healthy},
		"migrate":            {"postgres": healthy},
		// Not Temporal: a run is accepted while it is away.
		"api":    {"postgres": healthy, "migrate": completed},
		"worker": {"postgres": healthy, "migrate": completed, "temporal": healthy, "temporal-namespace": completed},
	}
	services := compose(t).Services
	got := map[string]map[string]string{}
	for name, s := range services {
		got[name] = map[string]string{}
		for on, d := range s.DependsOn {
			got[name][on] = d.Condition
			require.Contains(t, services, on, name)
			switch d.Condition {
			case healthy:
				require.NotNil(t, services[on].HealthCheck, "%s waits for the health of %s, which has no check", name, on)
			case completed:
				require.True(t, strings.HasPrefix(services[on].Restart, "on-failure"), "%s waits for the end of %s, which is restarted for ever", name, on)
			}
		}
	}
	require.Equal(t, want, got)
}

func TestComposeServices(t *testing.T) {
	c := compose(t)
	pinned := regexp.MustCompile(`^[a-z/-]+:\d+\.\d+(\.\d+)?(-[a-z0-9.]+)?$`)
	for name, s := range c.Services {
		if s.Build == "" {
			require.Regexp(t, pinned, s.Image, "%s: an image without an exact version is another one tomorrow", name)
		}
		require.Empty(t, s.ContainerName, "%s: one name is one container", name)
		require.NotEmpty(t, s.Restart, name)
		for _, p := range s.Ports {
			require.True(t, strings.HasPrefix(p, "127.0.0.1:"), "%s publishes %s beyond this host", name, p)
		}
		if !strings.HasPrefix(s.Restart, "on-failure") && name != "worker" {
			require.NotNil(t, s.HealthCheck, "%s has no health check", name)
			require.Greater(t, len(s.HealthCheck.Test), 1, name)
			require.NotEmpty(t, s.HealthCheck.Interval, name)
			require.NotEmpty(t, s.HealthCheck.Timeout, name)
			require.Positive(t, s.HealthCheck.Retries, name)
		}
	}
	worker := c.Services["worker"]
	require.Empty(t, worker.Ports, "two workers cannot share a port of the host")
	require.Equal(t, "1", defaults(worker.Deploy.Replicas))
	require.NotEqual(t, c.Services["postgres"].Volumes, c.Services["temporal-postgres"].Volumes, "Temporal has a database of its own")
	for _, name := range []string{"postgres", "temporal-postgres"} {
		volume, _, _ := strings.Cut(c.Services[name].Volumes[0].(string), ":")
		require.Contains(t, c.Volumes, volume)
	}
}

// The program must know every subcommand, flag and variable that the compose file gives it.
func TestComposeFitsTheProgram(t *testing.T) {
	p := program(t)
	c := compose(t)
	for _, name := range []string{"migrate", "api", "worker"} {
		s := c.Services[name]
		require.Equal(t, ".", s.Build)
		require.NotEmpty(t, s.Command)
		require.Equal(t, name, s.Command[0])
		require.Contains(t, p.commands, s.Command[0])
		for _, arg := range s.Command {
			if flag, ok := strings.CutPrefix(arg, "--"); ok {
				require.Contains(t, p.flags, flag, "%s: the program has no flag %s", name, arg)
			}
		}
		for variable := range s.Environment {
			require.Contains(t, p.variables, variable, "%s: the program reads no variable %s", name, variable)
		}
		for _, mount := range s.Volumes {
			m := mount.(map[string]any)
			source := defaults(m["source"].(string))
			_, err := os.Stat(filepath.Join(root, source))
			require.NoError(t, err, "%s mounts a file that is not there", name)
			require.Contains(t, s.Command, m["target"], "%s mounts a configuration and does not read it", name)
			require.Equal(t, true, m["read_only"])
		}
	}
	api, worker := c.Services["api"], c.Services["worker"]
	require.Contains(t, api.Command, "0.0.0.0:8080")
	require.Equal(t, "1", api.Environment["RUNLEDGER_INSECURE_LISTEN"], "without tokens the API listens on loopback only")
	require.Contains(t, api.HealthCheck.Test, "http://127.0.0.1:8080/healthz")
	for variable, value := range api.Environment {
		if variable != "RUNLEDGER_INSECURE_LISTEN" {
			require.Equal(t, value, worker.Environment[variable], "API and worker see another %s", variable)
		}
	}
	require.Equal(t, c.Services["temporal-namespace"].Environment["TEMPORAL_NAMESPACE"], worker.Environment["TEMPORAL_NAMESPACE"])
	require.Equal(t, "temporal:7233", worker.Environment["TEMPORAL_ADDRESS"])
	url := defaults(c.Services["migrate"].Environment["DATABASE_URL"])
	db := c.Services["postgres"].Environment
	require.Equal(t, "postgres://"+db["POSTGRES_USER"]+":"+defaults(db["POSTGRES_PASSWORD"])+"@postgres:5432/"+db["POSTGRES_DB"]+"?sslmode=disable", url)
}

// The Temporal of the compose file is tuned as the one of the local stack.
func TestComposeTunesTemporalLikeDevstack(t *testing.T) {
	c := compose(t)
	temporal := c.Services["temporal"]
	require.Len(t, temporal.Configs, 1)
	require.True(t, strings.HasSuffix(temporal.Configs[0].Target, "/"+temporal.Environment["DYNAMIC_CONFIG_FILE_PATH"]))
	var dynamic map[string][]struct{ Value any }
	require.NoError(t, yaml.Unmarshal([]byte(c.Configs[temporal.Configs[0].Source].Content), &dynamic))
	var got []string
	for key, values := range dynamic {
		require.Len(t, values, 1, key)
		value, err := yaml.Marshal(values[0].Value)
		require.NoError(t, err)
		got = append(got, key+"="+strings.TrimSpace(string(value)))
	}
	require.ElementsMatch(t, stringsOf(t, "devstack", "temporalTuning"), got)
}

func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	var from, users []string
	for line := range strings.Lines(string(text)) {
		switch fields := strings.Fields(line); {
		case len(fields) < 2:
		case fields[0] == "FROM":
			from, users = append(from, fields[1]), nil
		case fields[0] == "USER":
			users = append(users, fields[1])
		}
	}
	require.Len(t, from, 2, "one stage builds, the other runs")
	for _, image := range from {
		require.Regexp(t, `^[a-z]+:\d+\.\d+\.\d+`, image, "an image without an exact version is another one tomorrow")
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))
	require.NotNil(t, version)
	require.True(t, strings.HasPrefix(from[0], "golang:"+version[1]+"."), "%s cannot build a module of Go %s", from[0], version[1])
	require.Len(t, users, 1)
	require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, users[0], "as a number, so that an orchestrator can see that it is not root")
	require.Contains(t, string(text), "CGO_ENABLED=0")
	require.Contains(t, string(text), "./cmd/runledger")
}

// surface is what a user can say to the program.
type surface struct{ commands, flags, variables []string }

// program reads the surface of cmd/runledger from its source: fields with tags of kong, and names in os.Getenv and configuration.
func program(t *testing.T) surface {
	t.Helper()
	var p surface
	name := regexp.MustCompile(`^[A-Z][A-Z0-9_]+$`)
	for _, s := range sources(t) {
		if s.pkg != "cmd/runledger" || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if v, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && name.MatchString(v) {
					p.variables = append(p.variables, v)
				}
			case *ast.Field:
				if n.Tag == nil || len(n.Names) != 1 {
					break
				}
				text, _ := strconv.Unquote(n.Tag.Value)
				tag := reflect.StructTag(text)
				field := tag.Get("name")
				if field == "" {
					field = kebab(n.Names[0].Name)
				}
				if _, ok := tag.Lookup("cmd"); ok {
					p.commands = append(p.commands, field)
				} else {
					p.flags = append(p.flags, field)
				}
				if v, ok := tag.Lookup("env"); ok {
					p.variables = append(p.variables, strings.Split(v, ",")...)
				}
			}
			return true
		})
	}
	require.NotEmpty(t, p.commands)
	return p
}

// kebab turns a field's name into a flag's: InsecureListen into insecure-listen, DatabaseURL into database-url.
func kebab(field string) string {
	var b strings.Builder
	runes := []rune(field)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// stringsOf returns the strings of a package's variable.
func stringsOf(t *testing.T, pkg, variable string) []string {
	t.Helper()
	var found []string
	for _, s := range sources(t) {
		if s.pkg != pkg || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !slices.ContainsFunc(spec.Names, func(i *ast.Ident) bool { return i.Name == variable }) {
				return true
			}
			ast.Inspect(spec, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok {
					v, err := strconv.Unquote(lit.Value)
					require.NoError(t, err)
					found = append(found, v)
				}
				return true
			})
			return false
		})
	}
	require.NotEmpty(t, found, "%s has no variable %s with strings", pkg, variable)
	return found
}
