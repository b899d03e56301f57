package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"runledger/model"
	"runledger/model/openai"
	"runledger/model/scripted"
)

const (
	openaiProvider   = "openai"
	scriptedProvider = "scripted"
	defaultModel     = "gpt-5-mini"
	// scriptedDelay lets a person see the offline model's answer stream.
	scriptedDelay = 15 * time.Millisecond
)

func providers() []string { return []string{openaiProvider, scriptedProvider} }

// environmentModel is the model when no configuration names one: OpenAI or a compatible when the environment has a key or an
// address, else the offline model.
func environmentModel() modelConfig {
	if os.Getenv("OPENAI_API_KEY") == "" && os.Getenv("OPENAI_BASE_URL") == "" {
		return modelConfig{Provider: scriptedProvider, Model: scriptedProvider}
	}
	m := modelConfig{Provider: openaiProvider, Model: os.Getenv("OPENAI_MODEL"), BaseURL: os.Getenv("OPENAI_BASE_URL"), APIKeyEnv: "OPENAI_API_KEY"}
	if m.Model == "" {
		m.Model = defaultModel
	}
	return m
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
		switch m.Provider {
		case openaiProvider:
			key := ""
			if m.APIKeyEnv != "" {
				key = os.Getenv(m.APIKeyEnv)
			}
			if key == "" && m.BaseURL == "" {
				return nil, fmt.Errorf("models.%s: the environment variable %q with its key is not set", name, m.APIKeyEnv)
			}
			client, err := openai.New(openai.Options{BaseURL: m.BaseURL, APIKey: key})
			if err != nil {
				return nil, fmt.Errorf("models.%s: %w", name, err)
			}
			clients[name] = client
		case scriptedProvider:
			clients[name] = scripted.New(scripted.Options{Delay: scriptedDelay})
		}
	}
	return func(name string) model.Client { return clients[name] }, nil
}
