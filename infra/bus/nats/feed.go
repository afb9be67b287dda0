package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
)

const (
	heartbeatEvery = 2 * time.Second // of the server to a waiting Next; two missing ones end the wait
	reopenWait     = time.Second
	tailIdle       = 5 * time.Minute // then the server forgets the consumer of a tail that is gone
)

// feed is one pull consumer. A consumer that is lost (a server restarted, somebody deleted it) is
// made again; a tail then goes on behind the last message that it returned.
type feed struct {
	bus *Bus
	sub bus.Subscription

	start     uint64 // of a tail: stream sequence of the next message
	delivered uint64 // of a tail: messages of this consumer so far

	mu     sync.Mutex // guards what Close shares with Next
	msgs   jetstream.MessagesContext
	closed bool
}

// Subscribe implements bus.Bus.
func (b *Bus) Subscribe(ctx context.Context, sub bus.Subscription) (bus.Feed, error) {
	if err := sub.Validate(); err != nil {
		return nil, err
	}
	f := &feed{bus: b, sub: sub, start: 1}
	if sub.Name == "" && !sub.FromStart {
		s, err := b.js.Stream(ctx, streamName)
		if err != nil {
			return nil, unavailable(ctx, "subscribe", err)
		}
		f.start = s.CachedInfo().State.LastSeq + 1
	}
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// open makes the consumer, if it is not there, and begins to receive from it.
func (f *feed) open(ctx context.Context) error {
	cfg := jetstream.ConsumerConfig{MaxAckPending: -1}
	for _, t := range slices.Compact(slices.Sorted(slices.Values(f.sub.Types))) {
		if t == bus.Any { // sorts first; filters must not overlap
			cfg.FilterSubjects = []string{eventPrefix + ">"}
			break
		}
		cfg.FilterSubjects = append(cfg.FilterSubjects, eventPrefix+t)
	}
	if f.sub.Name == "" {
		f.delivered = 0
		cfg.AckPolicy, cfg.MemoryStorage, cfg.InactiveThreshold = jetstream.AckNonePolicy, true, tailIdle
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.start
	} else {
		cfg.Durable, cfg.AckPolicy, cfg.AckWait, cfg.MaxDeliver = f.sub.Name, jetstream.AckExplicitPolicy, f.bus.ackWait, -1
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
		if f.sub.FromStart {
			cfg.DeliverPolicy = jetstream.DeliverAllPolicy
		}
		if c, err := f.bus.js.Consumer(ctx, streamName, f.sub.Name); err == nil {
			cfg.DeliverPolicy = c.CachedInfo().Config.DeliverPolicy // cannot be changed
		}
	}
	c, err := f.bus.js.CreateOrUpdateConsumer(ctx, streamName, cfg)
	if err != nil {
		return unavailable(ctx, "subscribe", err)
	}
	// One message per pull, which is asked for when Next is called: nothing is fetched ahead.
	msgs, err := c.Messages(jetstream.PullMaxMessages(1), jetstream.PullHeartbeat(heartbeatEvery))
	if err != nil {
		return unavailable(ctx, "subscribe", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		msgs.Stop()
		return errFeedClosed()
	}
	f.msgs = msgs
	return nil
}

func errFeedClosed() error { return fmt.Errorf("%w: the feed is closed", handlers.ErrUnavailable) }

// current returns the consumer's messages, or why there are none any more.
func (f *feed) current() (jetstream.MessagesContext, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.bus.conn.IsClosed() {
		return nil, errFeedClosed()
	}
	return f.msgs, nil
}

// Next implements bus.Feed.
func (f *feed) Next(ctx context.Context) (bus.Message, error) {
	for {
		msgs, err := f.current()
		if err != nil {
			return bus.Message{}, err
		}
		msg, err := receive(ctx, msgs)
		if err == nil {
			var m bus.Message
			if m, err = f.message(msg); err == nil {
				return m, nil
			}
		}
		if ctx.Err() != nil {
			return bus.Message{}, fmt.Errorf("wait for a message: %w", context.Cause(ctx))
		}
		if err := f.reopen(ctx, msgs, err); err != nil {
			return bus.Message{}, err
		}
	}
}

// receive waits for a message, in steps that grow from a millisecond. In nats.go 1.55 (pull.go,
// checkPending) a Next that begins while the pull before it is just being sent asks for nothing:
// alone, it would wait until heartbeats are missing.
func receive(ctx context.Context, msgs jetstream.MessagesContext) (jetstream.Msg, error) {
	for wait := time.Millisecond; wait < time.Second; wait *= 4 {
		step, cancel := context.WithTimeout(ctx, wait)
		msg, err := msgs.Next(jetstream.NextContext(step))
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return msg, err
		}
	}
	return msgs.Next(jetstream.NextContext(ctx))
}

// reopen replaces a lost consumer, however long that takes. lost is why.
func (f *feed) reopen(ctx context.Context, msgs jetstream.MessagesContext, lost error) error {
	msgs.Stop()
	for {
		if _, err := f.current(); err != nil {
			return err
		}
		f.bus.log.Warn("lost a NATS consumer; opening it again", "subscription", f.sub.Name, "error", lost)
		if lost = f.open(ctx); lost == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a message: %w", context.Cause(ctx))
		case <-time.After(reopenWait):
		}
	}
}

// message turns msg into a bus.Message. The error is that a tail missed something.
func (f *feed) message(msg jetstream.Msg) (bus.Message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return bus.Message{}, err
	}
	m := bus.Message{Deliveries: int(meta.NumDelivered), AckWait: f.bus.ackWait, Receipt: receipt{msg}}
	if f.sub.Name == "" {
		if f.delivered++; meta.Sequence.Consumer != f.delivered {
			return bus.Message{}, fmt.Errorf("message %d came in place of %d", meta.Sequence.Consumer, f.delivered)
		}
		f.start = meta.Sequence.Stream + 1
		m.AckWait, m.Receipt = 0, noReceipt{}
	}
	m.Raw, m.Event, m.Err = decode(msg)
	return m, nil
}

// Close implements bus.Feed. A message that arrived and that nobody asked for goes back at once.
func (f *feed) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.msgs.Drain()
	for {
		msg, err := f.msgs.Next(jetstream.NextMaxWait(time.Second))
		if err != nil {
			return nil
		}
		_ = msg.Nak() // a lost one is delivered again after the ack wait
	}
}

// decode reads a message in structured mode, or in binary mode if it has the headers for it.
// Source: NATS Protocol Binding for CloudEvents 1.0.
func decode(msg jetstream.Msg) (raw []byte, e events.Event, err error) {
	headers := http.Header{}
	for name, values := range msg.Headers() {
		for _, v := range values {
			headers.Add(name, v)
		}
	}
	raw = msg.Data()
	if headers.Get("ce-specversion") != "" && !strings.HasPrefix(headers.Get(contentType), "application/cloudevents") {
		converted, err := fromBinary(headers, raw)
		if err != nil {
			return raw, events.Event{}, err
		}
		raw = converted
	}
	e, err = bus.Decode(raw)
	return raw, e, err
}

// fromBinary returns the structured form of a binary-mode message.
func fromBinary(headers http.Header, data []byte) (raw []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // the SDK's readers trust their input
			err = fmt.Errorf("%w: binary-mode CloudEvent: %v", handlers.ErrInvalid, p)
		}
	}()
	e, err := binding.ToEvent(context.Background(), cehttp.NewMessage(headers, io.NopCloser(bytes.NewReader(data))))
	if err != nil {
		return nil, fmt.Errorf("%w: binary-mode CloudEvent: %w", handlers.ErrInvalid, err)
	}
	return bus.Encode(*e)
}

// receipt settles a message of a durable consumer.
type receipt struct{ msg jetstream.Msg }

// Ack implements bus.Receipt. It does not wait for the server.
func (r receipt) Ack(ctx context.Context) error { return settled(ctx, "ack", r.msg.Ack) }

// Nak implements bus.Receipt. It does not wait for the server.
func (r receipt) Nak(ctx context.Context, delay time.Duration) error {
	return settled(ctx, "nak", func() error { return r.msg.NakWithDelay(delay) })
}

// Extend implements bus.Receipt. It does not wait for the server.
func (r receipt) Extend(ctx context.Context) error { return settled(ctx, "extend", r.msg.InProgress) }

func settled(ctx context.Context, verb string, do func() error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", verb, context.Cause(ctx))
	}
	if err := do(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return unavailable(ctx, verb, err)
	}
	return nil
}

// noReceipt is the receipt of a tail's messages.
type noReceipt struct{}

func (noReceipt) Ack(context.Context) error                { return nil }
func (noReceipt) Nak(context.Context, time.Duration) error { return nil }
func (noReceipt) Extend(context.Context) error             { return nil }
