package mem

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
)

type feed struct {
	bus   *Bus
	group *group
	once  sync.Once
	done  chan struct{}
}

// Next implements bus.Feed.
func (f *feed) Next(ctx context.Context) (bus.Message, error) {
	for {
		p, wait, wake, err := f.take(ctx)
		if err != nil {
			return bus.Message{}, err
		}
		if p != nil {
			return f.message(p), nil
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-wake:
		case <-timer:
		case <-f.done:
		case <-ctx.Done():
		}
	}
}

// Close implements bus.Feed.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// take marks the next message as delivered. Without one it returns how long it is until one is
// due (0: none is pending) and what to wait on.
func (f *feed) take(ctx context.Context) (*pending, time.Duration, <-chan struct{}, error) {
	unlock, err := f.bus.lock(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	defer unlock()
	select {
	case <-f.done:
		return nil, 0, nil, fmt.Errorf("%w: the feed is closed", handlers.ErrUnavailable)
	default:
	}
	g, now := f.group, time.Now()
	var first *pending
	for _, p := range g.pending {
		if first == nil || p.due.Before(first.due) {
			first = p
		}
	}
	if first == nil || first.due.After(now) {
		if p := f.fresh(); p != nil {
			first = p
		}
	}
	switch {
	case first == nil:
		return nil, 0, f.bus.wake, nil
	case first.due.After(now):
		return nil, first.due.Sub(now), f.bus.wake, nil
	}
	first.deliveries++
	first.due = now.Add(f.bus.ackWait)
	if g.sub.Name != "" {
		g.pending[first.entry.seq] = first
	}
	copied := *first
	return &copied, 0, nil, nil
}

// fresh returns the next entry of the log that the group wants, due at once.
func (f *feed) fresh() *pending {
	b, g := f.bus, f.group
	for ; g.next < b.end; g.next++ {
		i := len(b.log) - (b.end - g.next)
		if i < 0 {
			continue // expired
		}
		if e := b.log[i]; g.sub.Wants(e.typ) {
			g.next++
			return &pending{entry: e}
		}
	}
	return nil
}

func (f *feed) message(p *pending) bus.Message {
	m := bus.Message{Raw: p.entry.raw, Deliveries: p.deliveries, Receipt: receipt{f.bus, f.group, p.entry.seq, p.deliveries}}
	if f.group.sub.Name != "" {
		m.AckWait = f.bus.ackWait
	}
	m.Event, m.Err = bus.Decode(p.entry.raw)
	return m
}

// receipt settles one delivery of one message.
type receipt struct {
	bus      *Bus
	group    *group
	seq      int
	delivery int
}

// Ack implements bus.Receipt.
func (r receipt) Ack(ctx context.Context) error {
	return r.settle(ctx, func(*pending) { delete(r.group.pending, r.seq) })
}

// Nak implements bus.Receipt.
func (r receipt) Nak(ctx context.Context, delay time.Duration) error {
	return r.settle(ctx, func(p *pending) { p.due = time.Now().Add(delay) })
}

// Extend implements bus.Receipt.
func (r receipt) Extend(ctx context.Context) error {
	return r.settle(ctx, func(p *pending) { p.due = time.Now().Add(r.bus.ackWait) })
}

// settle applies do unless the message was acked, or delivered again since.
func (r receipt) settle(ctx context.Context, do func(*pending)) error {
	unlock, err := r.bus.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if p := r.group.pending[r.seq]; p != nil && p.deliveries == r.delivery {
		do(p)
		r.bus.wakeAll()
	}
	return nil
}
