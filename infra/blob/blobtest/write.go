package blobtest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

func roundTrip(t *testing.T, s blob.Store) {
	for i, size := range []int{0, 1, 1000, 8*mib - 1, 8 * mib, 8*mib + 1, 20 * mib} {
		key, data := fmt.Sprintf("round/%d", size), content(uint64(i), size)
		written := put(t, s, key, data, blob.Cond{})
		read := wantContent(t, s, key, data)
		seen, err := s.Stat(t.Context(), key)
		wantNil(t, "Stat", err)
		for what, got := range map[string]blob.Info{"Put": written, "Get": read, "Stat": seen} {
			if got.Key != key || got.Size != int64(size) || got.Version == "" || got.Version != written.Version || got.ModTime.IsZero() {
				t.Errorf("%s of %d bytes under %q: info = %+v, want that key, size and the version %q", what, size, key, got, written.Version)
			}
		}
	}
}

func conditions(t *testing.T, s blob.Store) {
	const key = "conditions/doc"
	_, err := blob.PutBytes(t.Context(), s, key, []byte("x"), blob.Cond{Version: put(t, s, "conditions/other", []byte("other"), blob.Cond{}).Version})
	wantClass(t, "compare-and-swap on a missing key", err, handlers.ErrConflict)
	wantMissing(t, s, key)

	first := put(t, s, key, []byte("first"), blob.Cond{Absent: true})
	_, err = blob.PutBytes(t.Context(), s, key, []byte("again"), blob.Cond{Absent: true})
	wantClass(t, "create-only on an existing key", err, handlers.ErrConflict)
	wantContent(t, s, key, []byte("first"))

	second := put(t, s, key, []byte("second"), blob.Cond{Version: first.Version})
	if second.Version == first.Version {
		t.Errorf("two contents have one version %q", first.Version)
	}
	_, err = blob.PutBytes(t.Context(), s, key, []byte("stale"), blob.Cond{Version: first.Version})
	wantClass(t, "compare-and-swap on a stale version", err, handlers.ErrConflict)
	if got := wantContent(t, s, key, []byte("second")).Version; got != second.Version {
		t.Errorf("version after a refused put = %q, want %q", got, second.Version)
	}

	third := put(t, s, key, []byte("third"), blob.Cond{})
	_, err = blob.PutBytes(t.Context(), s, key, []byte("stale"), blob.Cond{Version: second.Version})
	wantClass(t, "compare-and-swap behind an unconditional put", err, handlers.ErrConflict)
	wantContent(t, s, key, []byte("third"))

	wantNil(t, "Delete", s.Delete(t.Context(), key))
	_, err = blob.PutBytes(t.Context(), s, key, []byte("gone"), blob.Cond{Version: third.Version})
	wantClass(t, "compare-and-swap on a deleted key", err, handlers.ErrConflict)
	wantMissing(t, s, key)
	put(t, s, key, []byte("new"), blob.Cond{Absent: true})
	wantContent(t, s, key, []byte("new"))
}

func largeConditions(t *testing.T, s blob.Store) {
	const key = "large"
	data := content(1, 9*mib)
	_, err := blob.PutBytes(t.Context(), s, key, data, blob.Cond{Version: put(t, s, "other", data[:9], blob.Cond{}).Version})
	wantClass(t, "compare-and-swap on a missing key", err, handlers.ErrConflict)
	wantMissing(t, s, key)
	first := put(t, s, key, data, blob.Cond{Absent: true})
	data2 := content(2, 9*mib)
	_, err = blob.PutBytes(t.Context(), s, key, data2, blob.Cond{Absent: true})
	wantClass(t, "create-only on an existing key", err, handlers.ErrConflict)
	wantContent(t, s, key, data)
	put(t, s, key, data2, blob.Cond{Version: first.Version})
	_, err = blob.PutBytes(t.Context(), s, key, data, blob.Cond{Version: first.Version})
	wantClass(t, "compare-and-swap on a stale version", err, handlers.ErrConflict)
	wantContent(t, s, key, data2)
}

func invalidPuts(t *testing.T, s blob.Store) {
	_, err := blob.PutBytes(t.Context(), s, "k", nil, blob.Cond{Absent: true, Version: "v"})
	wantClass(t, "Put with two conditions", err, handlers.ErrInvalid)
	_, err = s.Put(t.Context(), "k", bytes.NewReader(nil), -1, blob.Cond{})
	wantClass(t, "Put of a negative size", err, handlers.ErrInvalid)
	wantMissing(t, s, "k")
}

// race lets n writers put under one condition and returns what the only winner wrote.
func race(t *testing.T, s blob.Store, key string, n, size int, seed uint64, cond blob.Cond) blob.Info {
	t.Helper()
	infos, errs := make([]blob.Info, n), make([]error, n)
	parallel(n, func(i int) {
		infos[i], errs[i] = blob.PutBytes(t.Context(), s, key, content(seed+uint64(i), size), cond)
	})
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("writers %d and %d both won", winner, i)
		case err == nil:
			winner = i
		case !errors.Is(err, handlers.ErrConflict) && !errors.Is(err, handlers.ErrUnavailable):
			t.Errorf("writer %d lost with %v, want conflict", i, err)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won; the first error is: %v", errs[0])
	}
	if got, want := wantContent(t, s, key, content(seed+uint64(winner), size)).Version, infos[winner].Version; got != want {
		t.Fatalf("version = %q, want the winner's %q", got, want)
	}
	return infos[winner]
}

func swapRace(t *testing.T, s blob.Store) {
	info := put(t, s, "race/swap", []byte("start"), blob.Cond{})
	for round := range uint64(10) {
		info = race(t, s, "race/swap", 16, 500, 1000*(round+1), blob.Cond{Version: info.Version})
	}
}

func createRace(t *testing.T, s blob.Store) {
	for round := range uint64(10) {
		race(t, s, fmt.Sprintf("race/create/%d/doc", round), 16, 500, 1000*round, blob.Cond{Absent: true})
	}
}

func largeCreateRace(t *testing.T, s blob.Store) {
	race(t, s, "race/large", 4, 9*mib, 0, blob.Cond{Absent: true})
}

func increments(t *testing.T, s blob.Store) {
	const workers, each = 4, 8
	put(t, s, "counter", []byte("0"), blob.Cond{})
	var done atomic.Int64
	parallel(workers, func(int) {
		for tries, n := 0, 0; n < each && tries < 10_000; tries++ {
			data, info, err := blob.ReadAll(t.Context(), s, "counter")
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			count, err := strconv.Atoi(string(data))
			if err != nil {
				t.Errorf("read half a document: %v", err)
				return
			}
			_, err = blob.PutBytes(t.Context(), s, "counter", strconv.AppendInt(nil, int64(count+1), 10), blob.Cond{Version: info.Version})
			switch {
			case err == nil:
				n++
				done.Add(1)
			case !errors.Is(err, handlers.ErrConflict) && !errors.Is(err, handlers.ErrUnavailable):
				t.Errorf("increment: %v", err)
				return
			}
		}
	})
	if got, want := done.Load(), int64(workers*each); got != want {
		t.Errorf("%d increments succeeded, want %d", got, want)
	}
	wantContent(t, s, "counter", []byte(strconv.Itoa(workers*each)))
}

// createDeleteRace: several objects come and go in one directory, so it comes and goes too. A store
// may lose patience with that (unavailable), but not do half of it.
func createDeleteRace(t *testing.T, s blob.Store) {
	const rounds, patience = 25, 100
	parallel(4, func(i int) {
		for round := range rounds {
			key := fmt.Sprintf("come/and/go/%d", i)
			data := content(uint64(round), 100)
			err := handlers.ErrUnavailable
			for try := 0; try < patience && handlers.Class(err) == handlers.ErrUnavailable; try++ {
				_, err = blob.PutBytes(t.Context(), s, key, data, blob.Cond{Absent: try == 0})
			}
			if err != nil {
				t.Errorf("create %q in round %d: %v", key, round, err)
				return
			}
			if got, _, err := blob.ReadAll(t.Context(), s, key); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %q in round %d: %d bytes, error %v", key, round, len(got), err)
				return
			}
			if err := s.Delete(t.Context(), key); err != nil {
				t.Errorf("delete %q in round %d: %v", key, round, err)
				return
			}
		}
	})
	if keys := list(t, s, ""); len(keys) != 0 {
		t.Errorf("keys left: %q", keys)
	}
}

func deletes(t *testing.T, s blob.Store) {
	wantNil(t, "Delete of what never existed", s.Delete(t.Context(), "never/there"))
	put(t, s, "d/one", []byte("1"), blob.Cond{})
	put(t, s, "d/two", []byte("2"), blob.Cond{})
	wantNil(t, "Delete", s.Delete(t.Context(), "d/one"))
	wantNil(t, "second Delete", s.Delete(t.Context(), "d/one"))
	wantMissing(t, s, "d/one")
	wantNil(t, "Delete of a directory", s.Delete(t.Context(), "d"))
	wantContent(t, s, "d/two", []byte("2"))
	wantNil(t, "Delete below an object", s.Delete(t.Context(), "d/two/three"))
	_, _, err := s.Get(t.Context(), "d/two/three")
	wantClass(t, "Get below an object", err, handlers.ErrNotFound)
	_, _, err = s.Get(t.Context(), "d")
	wantClass(t, "Get of a directory", err, handlers.ErrNotFound)
	wantNil(t, "Delete", s.Delete(t.Context(), "d/two"))
	put(t, s, "d", []byte("a file where a directory was"), blob.Cond{Absent: true})
	wantNil(t, "Delete", s.Delete(t.Context(), "d"))
	put(t, s, "d/one", []byte("and back"), blob.Cond{Absent: true})
	wantContent(t, s, "d/one", []byte("and back"))
}
