package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"runledger/model"
	"runledger/tool"
)

// ask is what the user says: so many files are to be read.
func ask(files int) string { return fmt.Sprintf("Read %d files and tell me what they say.", files) }

// readerModel asks for one file per turn, until it has read as many as the user said, and answers.
type readerModel struct {
	mu          sync.Mutex
	first, last prompt
	largest     int
	asked       int
}

// prompt is the size of what a model was sent.
type prompt struct{ tokens, messages int }

// Generate counts the turns by the number in the newest call's id, since the prompt need not hold them all.
func (m *readerModel) Generate(_ context.Context, req model.Request, emit func(model.Delta)) (model.Reply, error) {
	req = model.WithoutMarks(req)
	m.note(req)
	done, files := 0, 0
	for _, said := range req.Messages {
		switch said.Role {
		case model.User:
			words := strings.Fields(said.Text)
			files, _ = strconv.Atoi(words[1])
			done = 0
		case model.ToolRole:
			done, _ = strconv.Atoi(said.ToolCallID)
		case model.System, model.Assistant:
		}
	}
	reply := model.Reply{Model: "bench", Usage: model.Usage{InputTokens: sizeOf(req).tokens, OutputTokens: 40}}
	if done == files {
		reply.Text, reply.Finish = fmt.Sprintf("I have read %d files. They say what files say.", files), model.FinishStop
	} else {
		next := strconv.Itoa(done + 1)
		reply.Text, reply.Finish = "Now file "+next+".", model.FinishTools
		reply.ToolCalls = []model.ToolCall{{ID: next, Name: "read_file", Arguments: `{"path":"notes/` + next + `.md"}`}}
	}
	if emit != nil {
		emit(model.Delta{Channel: model.Text, Text: reply.Text})
	}
	return reply, nil
}

func (m *readerModel) note(req model.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size := sizeOf(req)
	if m.asked++; m.asked == 1 {
		m.first = size
	}
	m.last, m.largest = size, max(m.largest, size.tokens)
}

// forget begins to count anew.
func (m *readerModel) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first, m.last, m.largest, m.asked = prompt{}, prompt{}, 0, 0
}

func (m *readerModel) told() (first, last prompt, largest int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first, m.last, m.largest
}

// sizeOf estimates a prompt: a token for four bytes.
func sizeOf(req model.Request) (p prompt) {
	bytes := 0
	for _, m := range req.Messages {
		bytes += len(m.Text)
		for _, c := range m.ToolCalls {
			bytes += len(c.Arguments)
		}
	}
	return prompt{tokens: bytes / 4, messages: len(req.Messages)}
}

type file struct {
	Path string `json:"path"`
}

type content struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// readFile gives 2 to 8 KB, by the path.
func readFile(_ context.Context, in file, _ tool.Call) (content, error) {
	sum := 0
	for _, c := range in.Path {
		sum = sum*31 + int(c)
	}
	lines := 20 + (sum%60+60)%60 // of 100 bytes
	return content{Path: in.Path, Text: strings.Repeat(strings.Repeat("lorem ipsum ", 8)+"end\n", lines)}, nil
}
