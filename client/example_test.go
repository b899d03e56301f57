package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"runledger/client"
)

// A program that shows a conversation, and remembers what it has.
func ExampleClient_Follow() {
	c := &client.Client{URL: "http://127.0.0.1:8080", Token: "..."}
	last := int64(0) // the number of the last event that this program has kept
	for u, err := range c.Follow(context.Background(), client.Conversation("01a1fef1-cb87-7bb4-b28d-f41b0ed10136"), client.Options{From: last + 1}) {
		var gone *client.GoneError
		switch {
		case errors.As(err, &gone):
			log.Fatalf("events %d to %d are no longer kept", gone.From, gone.Oldest-1)
		case err != nil:
			log.Fatal(err)
		case u.Event != nil:
			fmt.Println(u.Event.Sequence, u.Event.Type)
			last = u.Event.Sequence
		}
		if u.Output != nil && u.Output.Channel == "text" {
			fmt.Print(u.Output.Added)
		}
	}
	fmt.Println("nothing of the conversation is at work")
}
