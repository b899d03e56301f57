package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"runledger/model"
	"runledger/model/anthropic"
	"runledger/model/gemini"
	"runledger/model/openai"
	"runledger/model/scripted"
)

const (
	scriptedProvider = "scripted"
	// scriptedDelay lets a person see the offline model's answer stream.
	scriptedDelay = 15 * time.Millisecond
)

// vendor is a provider that wants a key, or the address of something that does not.
type vendor struct {
	provider string
	// The variables of the vendor's key, another address and another model.
	keyEnv, baseURLEnv, modelEnv string
	// model is asked where the environment names none.
	model string
	open  func(m modelConfig, key string) (model.Client, error)
}

// vendors are the providers in the order in which the environment is searched for a key.
func vendors() []vendor {
	return []vendor{
		{"openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "gpt-5-mini", func(m modelConfig, key string) (model.Client, error) {
			return openai.New(openai.Options{BaseURL: m.BaseURL, APIKey: key})
		}},
		{"anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "claude-sonnet-5-5", func(m modelConfig, key string) (model.Client, error) {
			return anthropic.New(anthropic.Options{BaseURL: m.BaseURL, APIKey: key, MaxTokens: m.MaxTokens})
		}},
		{"gemini", "GEMINI_API_KEY", "GEMINI_BASE_URL", "GEMINI_MODEL", "gemini-flash-latest", func(m modelConfig, key string) (model.Client, error) {
			return gemini.New(gemini.Options{BaseURL: m.BaseURL, APIKey: key})
		}},
	}
}

func vendorOf(provider string) (vendor, bool) {
	all := vendors()
	i := slices.IndexFunc(all, func(v vendor) bool { return v.provider == provider })
	if i < 0 {
		return vendor{}, false
	}
	return all[i], true
}

func providers() []string {
	var names []string
	for _, v := range vendors() {
		names = append(names, v.provider)
	}
	return append(names, scriptedProvider)
}

// environmentModel is the model when no configuration names one: that of the first vendor for which the environment has a
// key or an address, else the offline model.
func environmentModel() modelConfig {
	for _, v := range vendors() {
		base := os.Getenv(v.baseURLEnv)
		if os.Getenv(v.keyEnv) == "" && base == "" {
			continue
		}
		m := modelConfig{Provider: v.provider, Model: os.Getenv(v.modelEnv), BaseURL: base, APIKeyEnv: v.keyEnv}
		if m.Model == "" {
			m.Model = v.model
		}
		return m
	}
	return modelConfig{Provider: scriptedProvider, Model: scriptedProvider}
}

// goOffline replaces models whose key is not set by the offline model and tells which. It is for dev only: anywhere else a
// missing key is an error.
func (c *config) goOffline() (replaced []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m := c.Models[name]
		if m.Provider != scriptedProvider && m.APIKeyEnv != "" && os.Getenv(m.APIKeyEnv) == "" && m.BaseURL == "" {
			c.Models[name] = modelConfig{Provider: scriptedProvider, Model: scriptedProvider}
			replaced = append(replaced, name)
		}
	}
	return replaced
}

// clients makes the client of every configured model. Keys are read from the environment here and go nowhere else.
func (c *config) clients() (func(name string) model.Client, error) {
	clients := make(map[string]model.Client, len(c.Models))
	for name, m := range c.Models {
		if m.Provider == scriptedProvider {
			clients[name] = scripted.New(scripted.Options{Delay: scriptedDelay})
			continue
		}
		v, ok := vendorOf(m.Provider)
		if !ok {
			return nil, fmt.Errorf("models.%s: there is no provider %q", name, m.Provider)
		}
		key := ""
		if m.APIKeyEnv != "" {
			key = os.Getenv(m.APIKeyEnv)
		}
		if key == "" && m.BaseURL == "" {
			return nil, fmt.Errorf("models.%s: the environment variable %q with its key is not set", name, m.APIKeyEnv)
		}
		client, err := v.open(m, key)
		if err != nil {
			return nil, fmt.Errorf("models.%s: %w", name, err)
		}
		clients[name] = client
	}
	return func(name string) model.Client { return clients[name] }, nil
}
