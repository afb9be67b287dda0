// Package blobtest is the one conformance suite of the storage port: an adapter is correct when it
// passes. It tests what every store can do; that a version never comes back, and what an adapter
// leaves behind inside its storage (temporary files, open uploads), is for the adapter's own tests.
package blobtest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

const mib = 1 << 20

// Run runs the suite. Each case calls open once and expects an empty store.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, blob.Store)
	}{
		{"round trip", roundTrip},
		{"conditions", conditions},
		{"conditions on large objects", largeConditions},
		{"invalid puts", invalidPuts},
		{"concurrent compare-and-swap has one winner", swapRace},
		{"concurrent create-only has one winner", createRace},
		{"concurrent create-only of large objects has one winner", largeCreateRace},
		{"increments are never lost", increments},
		{"create and delete race", createDeleteRace},
		{"failing body leaves nothing", failingBody},
		{"body of another size leaves nothing", wrongSize},
		{"context cancelled before", cancelledBefore},
		{"context cancelled during a put", cancelledDuring},
		{"delete", deletes},
		{"overwrite while reading", overwriteWhileReading},
		{"readers see whole versions", wholeVersions},
		{"listing in pages", listPages},
		{"listing by prefix and after", listSelection},
		{"odd keys", oddKeys},
		{"refused keys", refusedKeys},
		{"times", times},
		{"probe", func(t *testing.T, s blob.Store) { wantNil(t, "Probe", blob.Probe(t.Context(), s)) }},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// content is size bytes that depend on seed.
func content(seed uint64, size int) []byte {
	data := make([]byte, size)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

func put(t *testing.T, s blob.Store, key string, data []byte, cond blob.Cond) blob.Info {
	t.Helper()
	info, err := blob.PutBytes(t.Context(), s, key, data, cond)
	if err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
	return info
}

func wantContent(t *testing.T, s blob.Store, key string, want []byte) blob.Info {
	t.Helper()
	got, info, err := blob.ReadAll(t.Context(), s, key)
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("Get(%q) has %d bytes that differ from the %d written", key, len(got), len(want))
	}
	return info
}

func wantMissing(t *testing.T, s blob.Store, key string) {
	t.Helper()
	_, err := s.Stat(t.Context(), key)
	wantClass(t, "Stat of a missing key", err, handlers.ErrNotFound)
	_, _, err = s.Get(t.Context(), key)
	wantClass(t, "Get of a missing key", err, handlers.ErrNotFound)
	if keys := list(t, s, key); len(keys) != 0 {
		t.Errorf("a key that was never written is listed: %q", keys)
	}
}

func wantNil(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantClass(t *testing.T, what string, err, want error) {
	t.Helper()
	if err == nil || !errors.Is(handlers.Class(err), want) {
		t.Errorf("%s: error = %v, want class %q", what, err, want)
	}
}

func list(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	var keys []string
	for info, err := range blob.All(t.Context(), s, prefix) {
		wantNil(t, "List", err)
		keys = append(keys, info.Key)
	}
	return keys
}

// parallel runs n copies of f and waits for them.
func parallel(n int, f func(i int)) {
	start, done := make(chan struct{}), make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			<-start
			f(i)
		}()
	}
	close(start)
	for range n {
		<-done
	}
}

// reader is a body that calls at before it hands out the byte at offset.
type reader struct {
	left   []byte
	offset int
	at     func() error
}

func (r *reader) Read(p []byte) (int, error) {
	if r.offset == 0 {
		if err := r.at(); err != nil {
			return 0, err
		}
		r.offset = -1
	}
	if r.offset > 0 {
		p = p[:min(len(p), r.offset)]
	}
	n, err := bytes.NewReader(r.left).Read(p)
	r.left = r.left[n:]
	if r.offset > 0 {
		r.offset -= n
	}
	return n, err
}
