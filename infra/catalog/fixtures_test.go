package catalog_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/catalog"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var (
	n1 = events.Node{Provider: "aws", Instance: "i-1"}
	n2 = events.Node{Provider: "aws", Instance: "i-2"}
)

const lease = 30 * time.Second

// spy is a store that counts and names its operations, and in which a test can interfere.
type spy struct {
	blob.Store
	ops    []string
	before func(n int, op string) error // an error: the operation has no effect
	after  func(n int, op string) error // an error: the operation had its effect
}

func (s *spy) do(op string, f func() error) error {
	n := len(s.ops)
	s.ops = append(s.ops, op)
	if s.before != nil {
		if err := s.before(n, op); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	if s.after != nil {
		return s.after(n, op)
	}
	return nil
}

func (s *spy) Get(ctx context.Context, key string) (r io.ReadCloser, info blob.Info, err error) {
	err = s.do("get "+key, func() error { r, info, err = s.Store.Get(ctx, key); return err })
	return r, info, err
}

func (s *spy) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (info blob.Info, err error) {
	verb := "put "
	switch {
	case cond.Absent:
		verb = "create "
	case cond.Version != "":
		verb = "swap "
	}
	err = s.do(verb+key, func() error { info, err = s.Store.Put(ctx, key, body, size, cond); return err })
	return info, err
}

func (s *spy) Stat(ctx context.Context, key string) (info blob.Info, err error) {
	err = s.do("stat "+key, func() error { info, err = s.Store.Stat(ctx, key); return err })
	return info, err
}

func (s *spy) List(ctx context.Context, prefix, after string, limit int) (page blob.Page, err error) {
	err = s.do("list "+prefix, func() error { page, err = s.Store.List(ctx, prefix, after, limit); return err })
	return page, err
}

func (s *spy) Delete(ctx context.Context, key string) error {
	return s.do("delete "+key, func() error { return s.Store.Delete(ctx, key) })
}

// writes are the operations since the first n that change something.
func (s *spy) writes(n int) []string {
	out := []string{}
	for _, op := range s.ops[n:] {
		if !strings.HasPrefix(op, "get ") && !strings.HasPrefix(op, "stat ") && !strings.HasPrefix(op, "list ") {
			out = append(out, op)
		}
	}
	return out
}

func (s *spy) lists() int {
	n := 0
	for _, op := range s.ops {
		if strings.HasPrefix(op, "list ") {
			n++
		}
	}
	return n
}

// world is a store with a clock of its own, spied upon, and a catalog on top of it.
type world struct {
	*catalog.Catalog
	truth *catalog.Catalog // the same store, not spied upon
	spy   *spy
	now   time.Time
}

func newWorld() *world {
	w := &world{now: t0}
	w.spy = &spy{Store: mem.New(func() time.Time { return w.now })}
	w.Catalog = &catalog.Catalog{Store: w.spy, Now: func() time.Time { return w.now }}
	w.truth = &catalog.Catalog{Store: w.spy.Store, Now: w.Now}
	return w
}

// onStores runs a test on the stores that need nothing else running.
func onStores(t *testing.T, run func(t *testing.T, c *catalog.Catalog)) {
	t.Run("mem", func(t *testing.T) { run(t, newWorld().Catalog) })
	t.Run("file", func(t *testing.T) {
		store, err := file.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		run(t, &catalog.Catalog{Store: store, Now: func() time.Time { return t0 }})
	})
}

func start(id string) catalog.Start {
	return catalog.Start{Job: "j", UID: "uid-" + id, Restarter: handlers.RestarterNone,
		Claim: handlers.Claim{ID: id, Node: n1, At: t0}, Lease: lease}
}

func begin(t *testing.T, c *catalog.Catalog, s catalog.Start) *catalog.Attempt {
	t.Helper()
	a, _, err := c.TryStart(t.Context(), s)
	if err != nil {
		t.Fatalf("start %s: %v", s.Claim.ID, err)
	}
	return a
}

func get(t *testing.T, c *catalog.Catalog) handlers.Job {
	t.Helper()
	j, err := c.Get(t.Context(), "j")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func put(t *testing.T, s blob.Store, key, content string) {
	t.Helper()
	if _, err := blob.PutBytes(t.Context(), s, key, []byte(content), blob.Cond{}); err != nil {
		t.Fatal(err)
	}
}

// upload is the data of a Commit: one file with that content.
func upload(s blob.Store, content string) func(context.Context, string) ([]handlers.File, error) {
	return func(ctx context.Context, prefix string) ([]handlers.File, error) {
		if _, err := blob.PutBytes(ctx, s, prefix+"/model.pt", []byte(content), blob.Cond{}); err != nil {
			return nil, err
		}
		rank, err := strconv.Atoi(path.Base(prefix))
		return []handlers.File{{Path: "model.pt", Node: rank, Size: int64(len(content)), SHA256: digest(content)}}, err
	}
}

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func commit(t *testing.T, c *catalog.Catalog, a *catalog.Attempt, step int64) handlers.Checkpoint {
	t.Helper()
	entry, err := a.Commit(t.Context(), handlers.Manifest{Step: step, Unit: "model.pt"}, upload(c.Store, fmt.Sprint("step ", step)))
	if err != nil {
		t.Fatalf("commit %d: %v", step, err)
	}
	return entry
}

// verify reads a checkpoint of job j as a restore does.
func verify(ctx context.Context, c *catalog.Catalog, cp handlers.Checkpoint) error {
	m, err := c.Manifest(ctx, "j", cp.Ref)
	if err != nil {
		return err
	}
	for _, f := range m.Files {
		data, _, err := blob.ReadAll(ctx, c.Store, catalog.DataKey(cp.Key, f))
		if err != nil {
			return err
		}
		if digest(string(data)) != f.SHA256 {
			return fmt.Errorf("%s of %s: %w", f.Path, cp, handlers.ErrRotten)
		}
	}
	return nil
}

func refs(list []handlers.Checkpoint) []string {
	out := []string{}
	for _, c := range list {
		out = append(out, c.String())
	}
	return out
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func wantClass(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error = %v, want %v", what, got, want)
	}
}

func ptr[T any](v T) *T { return &v }
