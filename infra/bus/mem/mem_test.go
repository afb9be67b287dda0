package mem_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/bus/bustest"
	"github.com/reprieve-dev/reprieve/infra/bus/mem"
)

func TestConformance(t *testing.T) {
	bustest.Run(t, func(t *testing.T, ackWait time.Duration) (bustest.Bus, func(string, []byte)) {
		b := mem.New(ackWait)
		t.Cleanup(func() { b.Close() })
		return b, func(typ string, raw []byte) {
			if err := b.PublishRaw(t.Context(), typ, raw); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestWindows(t *testing.T) {
	tests := []struct {
		name  string
		after time.Duration
		want  int // messages that a new group gets from the start
	}{
		{"within the deduplication window", 10*time.Minute - 1, 1},
		{"behind it", 10 * time.Minute, 2},
		{"behind the retention", 7 * 24 * time.Hour, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := mem.New(0)
				e := bustest.Event(t, events.TypeSweepDue, "1")
				if err := b.Publish(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				<-time.After(tt.after)
				if err := b.Publish(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				f, err := b.Subscribe(t.Context(), bus.Subscription{Name: "g", Types: []string{bus.Any}, FromStart: true})
				if err != nil {
					t.Fatal(err)
				}
				got := 0
				for {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, err := f.Next(ctx)
					cancel()
					if err != nil {
						break
					}
					got++
				}
				if got != tt.want {
					t.Errorf("messages: got %d, want %d", got, tt.want)
				}
			})
		})
	}
}

func ExampleBus() {
	ctx := context.Background()
	b := mem.New(0)
	defer b.Close()
	f, err := b.Subscribe(ctx, bus.Subscription{Types: []string{bus.Any}})
	if err != nil {
		panic(err)
	}
	e, err := events.New(events.TypeSweepDue, events.Source, "", "1", time.Now(), events.Due{At: time.Now()})
	if err != nil {
		panic(err)
	}
	if err := b.Publish(ctx, e); err != nil {
		panic(err)
	}
	m, err := f.Next(ctx)
	fmt.Println(m.Event.Type(), err)
	// Output: dev.reprieve.sweep.due <nil>
}
