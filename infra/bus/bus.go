// Package bus carries events between processes: the port that every message system has to fill,
// and Runner, the only loop that consumes events and the only place that decides what becomes of
// a handler's result.
//
// Events are hints and state is truth: a bus may deliver twice, late and in any order, and the
// watch pass re-derives whatever never arrived. What a bus may not do is to drop a message that
// was neither handled, ignored nor dead-lettered. Adapters live in one folder each (mem, nats);
// every one passes the suite in infra/bus/bustest.
package bus

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Bus is what every message system has to offer. All methods are safe for concurrent use. Errors
// wrap ErrInvalid (the event or the subscription is wrong), ErrPermanent (the system cannot do
// it) or ErrUnavailable (the outcome is unknown); an ended context's error wraps its cause.
type Bus interface {
	// Publish makes events durable before it returns. An event whose id was published within the
	// last ten minutes succeeds and changes nothing. After an error any of the events may have
	// been published; publishing all again is safe.
	Publish(ctx context.Context, evs ...events.Event) error

	// Subscribe begins to receive. What is published after it returned will be delivered.
	Subscribe(ctx context.Context, sub Subscription) (Feed, error)

	// DeadLetter keeps a message that nobody can handle, byte for byte, with the reason, for people.
	DeadLetter(ctx context.Context, raw []byte, reason string) error

	// Close ends all feeds and releases the bus. Idempotent.
	Close() error
}

// Any in Subscription.Types stands for all types.
const Any = "*"

// Subscription says what to receive.
type Subscription struct {
	// Name is the durable group: its subscribers share the messages, its position outlives them.
	// Letters, digits, - and _. Empty: an ephemeral tail of the subscriber's own, which delivers
	// each message once; Ack, Nak and Extend do nothing there.
	Name string
	// Types are exact event types, or Any.
	Types []string
	// FromStart delivers what the bus still holds, too. A group that exists goes on where it was.
	FromStart bool
}

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{0,64}$`)
	typeForm = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
)

// Validate returns an ErrInvalid that names what is wrong.
func (s Subscription) Validate() error {
	if !nameForm.MatchString(s.Name) {
		return fmt.Errorf("%w: subscription name %q: use up to 64 letters, digits, - and _", handlers.ErrInvalid, s.Name)
	}
	if len(s.Types) == 0 {
		return fmt.Errorf("%w: subscription %q names no event types: list them, or %q for all", handlers.ErrInvalid, s.Name, Any)
	}
	for _, t := range s.Types {
		if t != Any && !typeForm.MatchString(t) {
			return fmt.Errorf("%w: subscription %q: event type %q: use words of letters, digits, - and _ with dots between them", handlers.ErrInvalid, s.Name, t)
		}
	}
	return nil
}

// Wants reports whether events of type typ belong to the subscription.
func (s Subscription) Wants(typ string) bool {
	for _, t := range s.Types {
		if t == Any || t == typ {
			return true
		}
	}
	return false
}

// Feed is one subscriber's stream of messages. Next is for one goroutine at a time.
type Feed interface {
	// Next waits for a message. Nothing is fetched ahead of it: who does not call Next holds
	// nothing back from the group's other subscribers. ErrUnavailable when the feed is broken or
	// closed: subscribe again.
	Next(ctx context.Context) (Message, error)
	// Close ends the feed. Messages that Next returned can still be settled.
	Close() error
}

// Message is one delivery.
type Message struct {
	Event      events.Event  // if Err is nil
	Err        error         // why Raw is no event; wraps ErrInvalid
	Raw        []byte        // as it was delivered; the JSON form if it came in another
	Deliveries int           // of this message to this group, this one included
	AckWait    time.Duration // a message not settled for so long is delivered again; 0: never
	Receipt
}

// Receipt settles a delivery: Ack or Nak, once. A settlement that is lost, or comes after AckWait,
// leads to another delivery.
type Receipt interface {
	// Ack says that the message needs no further delivery.
	Ack(ctx context.Context) error
	// Nak asks for another delivery, to any subscriber of the group, after delay.
	Nak(ctx context.Context, delay time.Duration) error
	// Extend begins AckWait anew.
	Extend(ctx context.Context) error
}

// Dead is a dead-lettered message, as a person gets to see it.
type Dead struct {
	Raw    []byte
	Reason string
	Type   string // of the event, if Raw is one
	At     time.Time
}
