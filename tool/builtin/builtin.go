// Package builtin holds the tools that come with Runledger, one file each: a calculator, a clock and HTTP requests. To add
// one, write its file and name it in [Tools].
//
// The package may import runledger/agent, runledger/tool, the standard library and github.com/google/jsonschema-go.
package builtin

import (
	"time"

	"runledger/agent"
	"runledger/tool"
)

// Config is what the built-in tools can be told. The zero value is fine.
type Config struct {
	// HTTP says what http_request may do.
	HTTP HTTPConfig `yaml:"http_request"`
	// Calculator and Clock are the other two.
	Calculator ToolConfig `yaml:"calculator"`
	Clock      ToolConfig `yaml:"clock"`
	// Now is the clock's time; nil means the time of the machine.
	Now func() time.Time `yaml:"-"`
}

// ToolConfig is what every built-in tool can be told.
type ToolConfig struct {
	// Approve is the predicate on calls that need somebody's approval, as in [tool.Spec].
	Approve string `yaml:"approve"`
	// Lane is that of its calls, as in [tool.Spec].
	Lane agent.Lane `yaml:"lane"`
	// Limit bounds its calls over all workers, as in [tool.Spec].
	Limit Limit `yaml:",inline"`
}

// Limit bounds the calls of a tool over all workers.
type Limit struct {
	// MaxConcurrent is how many may be at work at a time, Rate how many may begin within a time; zero for any number.
	MaxConcurrent int       `yaml:"max_concurrent"`
	Rate          tool.Rate `yaml:"rate"`
}

func (l Limit) calls() tool.CallLimit {
	return tool.CallLimit{MaxConcurrent: l.MaxConcurrent, Rate: l.Rate}
}

// asking is a tool without optional powers that is told which of its calls need an approval, and their lane.
type asking struct {
	tool.Tool
	cfg ToolConfig
}

func (a asking) Spec() tool.Spec {
	spec := a.Tool.Spec()
	spec.Approve, spec.Lane, spec.Limit = a.cfg.Approve, a.cfg.Lane, a.cfg.Limit.calls()
	return spec
}

// Tools makes the built-in tools. The error names what is wrong with the configuration.
func Tools(cfg Config) ([]tool.Tool, error) {
	httpRequest, err := HTTPRequest(cfg.HTTP)
	if err != nil {
		return nil, err
	}
	return []tool.Tool{
		asking{Calculator(), cfg.Calculator},
		asking{Clock(cfg.Now), cfg.Clock},
		httpRequest,
	}, nil
}
