package api

import (
	"context"
	"net/http"
	"time"
)

// deleteTimeout bounds the deletion of one conversation. It goes on when the client has gone: half of it does not exist.
const deleteTimeout = 5 * time.Minute

// deleteConversation removes a conversation and everything of it.
func (a *API) deleteConversation(w http.ResponseWriter, r *http.Request) error {
	conversation, err := a.conversation(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), deleteTimeout)
	defer cancel()
	if err := a.cfg.Ledger.DeleteConversation(ctx, caller(r).Owner, conversation.ConversationID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
