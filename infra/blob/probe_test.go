package blob_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
)

// lax is a store that ignores some conditions, and counts puts under probe/.
type lax struct {
	blob.Store
	absent, version bool
	probes          atomic.Int64
}

func (l *lax) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (blob.Info, error) {
	if strings.HasPrefix(key, "probe/") {
		l.probes.Add(1)
	}
	cond.Absent = cond.Absent && !l.absent
	if l.version {
		cond.Version = ""
	}
	return l.Store.Put(ctx, key, body, size, cond)
}

func keys(t *testing.T, s blob.Store) (keys []string) {
	t.Helper()
	for info, err := range blob.All(t.Context(), s, "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name            string
		absent, version bool
		want            string
	}{
		{"obeys", false, false, ""},
		{"ignores If-None-Match", true, false, "ignores conditional writes (If-None-Match)"},
		{"ignores If-Match", false, true, "ignores conditional writes (If-Match)"},
		{"ignores both", true, true, "ignores conditional writes (If-None-Match)"},
	} {
		s := &lax{Store: mem.New(nil), absent: c.absent, version: c.version}
		err := blob.Probe(t.Context(), s)
		if c.want == "" && err != nil {
			t.Errorf("%s: error = %v, want nil", c.name, err)
		}
		if c.want != "" && (handlers.Class(err) != handlers.ErrPermanent || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error = %v, want permanent with %q", c.name, err, c.want)
		}
		if left := keys(t, s); len(left) != 0 {
			t.Errorf("%s: the probe left %q", c.name, left)
		}
		_, err = blob.Identify(t.Context(), s, func() string { return "uid" })
		if (c.want == "") != (err == nil) {
			t.Errorf("%s: Identify: error = %v", c.name, err)
		}
	}
}

func TestIdentify(t *testing.T) {
	s := &lax{Store: mem.New(nil)}
	var made atomic.Int64
	newUID := func() string { return strconv.FormatInt(made.Add(1), 10) }
	uids := make([]string, 8)
	var users sync.WaitGroup
	for i := range uids {
		users.Go(func() {
			var err error
			if uids[i], err = blob.Identify(t.Context(), s, newUID); err != nil {
				t.Error(err)
			}
		})
	}
	users.Wait()
	for _, uid := range uids {
		if uid == "" || uid != uids[0] {
			t.Fatalf("first users got the uids %q, want one", uids)
		}
	}
	before := s.probes.Load()
	if got, err := blob.Identify(t.Context(), s, newUID); err != nil || got != uids[0] {
		t.Errorf("later user got %q, error %v; want %q", got, err, uids[0])
	}
	if got := s.probes.Load(); got != before {
		t.Error("a store that has its uid was probed again")
	}
	if got := keys(t, s); len(got) != 1 || got[0] != "store.json" {
		t.Errorf("keys = %q, want store.json alone", got)
	}
}

func TestIdentifyRefuses(t *testing.T) {
	for _, c := range []struct{ document, want string }{
		{`{"format":2,"uid":"u"}`, "format 2"},
		{`{"uid":"u"}`, "format 0"},
		{`{"format":1}`, "no uid"},
		{`hello`, "not a document of Reprieve"},
	} {
		s := mem.New(nil)
		if _, err := blob.PutBytes(t.Context(), s, "store.json", []byte(c.document), blob.Cond{}); err != nil {
			t.Fatal(err)
		}
		_, err := blob.Identify(t.Context(), s, func() string { return "new" })
		if !errors.Is(err, handlers.ErrPermanent) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("store.json %s: error = %v, want permanent with %q", c.document, err, c.want)
		}
	}
}
