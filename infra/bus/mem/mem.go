// Package mem is a bus within one process, for tests and for runs without a server. Nothing
// outlives the process. All its waiting goes through package time, so that testing/synctest can
// drive it.
package mem

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
)

const (
	dedupWindow = 10 * time.Minute
	retention   = 7 * 24 * time.Hour
)

// Bus is an in-process bus.Bus. Make it with New.
type Bus struct {
	ackWait time.Duration

	mu     sync.Mutex
	log    []entry // ordered by seq, without gaps
	end    int     // seq of the next entry
	recent map[string]time.Time
	groups map[string]*group
	dead   []bus.Dead
	wake   chan struct{} // closed and replaced whenever a waiting Next has to look again
	closed bool
}

type entry struct {
	seq int
	typ string // the subject it was sent to
	raw []byte
	at  time.Time
}

// group is a durable group, or the one subscriber of an ephemeral tail.
type group struct {
	sub     bus.Subscription
	next    int // seq of the first entry that was not looked at
	pending map[int]*pending
}

// pending is a message that was delivered and not acked.
type pending struct {
	entry      entry
	deliveries int
	due        time.Time // of the next delivery
}

// New returns an empty bus. ackWait is how long a subscriber has to settle a message; 0 means 30 s.
func New(ackWait time.Duration) *Bus {
	if ackWait == 0 {
		ackWait = 30 * time.Second
	}
	return &Bus{ackWait: ackWait, recent: map[string]time.Time{}, groups: map[string]*group{}, wake: make(chan struct{})}
}

// Publish implements bus.Bus.
func (b *Bus) Publish(ctx context.Context, evs ...events.Event) error {
	raws := make([][]byte, len(evs))
	for i, e := range evs {
		raw, err := bus.Encode(e)
		if err != nil {
			return err
		}
		raws[i] = raw
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	now := time.Now()
	b.expire(now)
	for i, e := range evs {
		if _, ok := b.recent[e.ID()]; ok {
			continue
		}
		b.recent[e.ID()] = now
		b.add(e.Type(), raws[i], now)
	}
	return nil
}

// PublishRaw sends bytes as they are to the subscribers of type typ, as a foreign program could.
func (b *Bus) PublishRaw(ctx context.Context, typ string, raw []byte) error {
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	b.add(typ, slices.Clone(raw), time.Now())
	return nil
}

// Subscribe implements bus.Bus.
func (b *Bus) Subscribe(ctx context.Context, sub bus.Subscription) (bus.Feed, error) {
	if err := sub.Validate(); err != nil {
		return nil, err
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	g := b.groups[sub.Name]
	if g == nil || sub.Name == "" {
		g = &group{next: b.end, pending: map[int]*pending{}}
		if sub.FromStart {
			g.next = 0
		}
		if sub.Name != "" {
			b.groups[sub.Name] = g
		}
	}
	g.sub = sub
	return &feed{bus: b, group: g, done: make(chan struct{})}, nil
}

// DeadLetter implements bus.Bus.
func (b *Bus) DeadLetter(ctx context.Context, raw []byte, reason string) error {
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	d := bus.Dead{Raw: slices.Clone(raw), Reason: reason, At: time.Now()}
	if e, err := bus.Decode(raw); err == nil {
		d.Type = e.Type()
	}
	b.dead = append(b.dead, d)
	return nil
}

// DeadLetters returns what was dead-lettered so far, oldest first. The error is always nil.
func (b *Bus) DeadLetters(context.Context) iter.Seq2[bus.Dead, error] {
	return func(yield func(bus.Dead, error) bool) {
		b.mu.Lock()
		dead := slices.Clone(b.dead)
		b.mu.Unlock()
		for _, d := range dead {
			if !yield(d, nil) {
				return
			}
		}
	}
}

// Close implements bus.Bus.
func (b *Bus) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.wakeAll()
	return nil
}

// lock locks b, unless ctx or b has ended.
func (b *Bus) lock(ctx context.Context) (unlock func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, errClosed()
	}
	return b.mu.Unlock, nil
}

func errClosed() error { return fmt.Errorf("%w: the bus is closed", handlers.ErrUnavailable) }

func (b *Bus) wakeAll() {
	close(b.wake)
	b.wake = make(chan struct{})
}

func (b *Bus) add(typ string, raw []byte, now time.Time) {
	b.log = append(b.log, entry{seq: b.end, typ: typ, raw: raw, at: now})
	b.end++
	b.wakeAll()
}

// expire forgets what is older than the windows.
func (b *Bus) expire(now time.Time) {
	for id, at := range b.recent {
		if now.Sub(at) >= dedupWindow {
			delete(b.recent, id)
		}
	}
	old := 0
	for old < len(b.log) && now.Sub(b.log[old].at) >= retention {
		old++
	}
	b.log = b.log[old:]
}
