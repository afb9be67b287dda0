// Package mem is the store in memory: for tests, for the model test that walks through every
// interleaving (it copies the whole store at each step), and for --store mem://. It lives and
// dies with its process and injects no faults; wrap it for that.
package mem

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// maxGrow bounds what is allocated on the mere announcement of a size.
const maxGrow = 64 << 20

// Store implements blob.Store. Versions come from one counter, so none ever comes back.
type Store struct {
	now func() time.Time

	mu      sync.Mutex
	last    uint64
	objects map[string]object
}

// object is immutable: a Put replaces it, so readers and clones share its data.
type object struct {
	data    []byte
	version blob.Version
	mod     time.Time
}

// New returns an empty store whose clock is now; nil means time.Now.
func New(now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	return &Store{now: now, objects: map[string]object{}}
}

// Clone returns an independent store with the same objects, versions and clock. It copies the
// index, not the data.
func (s *Store) Clone() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{now: s.now, last: s.last, objects: maps.Clone(s.objects)}
}

func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, blob.Info, error) {
	found, err := s.find(ctx, "get", key)
	if err != nil {
		return nil, blob.Info{}, err
	}
	return io.NopCloser(bytes.NewReader(found.data)), found.info(key), nil
}

func (s *Store) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (blob.Info, error) {
	if err := blob.CheckPut(key, size, cond); err != nil {
		return blob.Info{}, err
	}
	var data bytes.Buffer
	data.Grow(int(min(size, maxGrow)) + bytes.MinRead)
	if _, err := data.ReadFrom(blob.Exact(ctx, body, size)); err != nil {
		return blob.Info{}, fmt.Errorf("put %q: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return blob.Info{}, blob.Unavailable(ctx, fmt.Sprintf("put %q", key), ctx.Err())
	}
	old, exists := s.objects[key]
	switch {
	case cond.Absent && exists:
		return blob.Info{}, fmt.Errorf("put %q: it exists: %w", key, handlers.ErrConflict)
	case cond.Version != "" && old.version != cond.Version:
		return blob.Info{}, fmt.Errorf("put %q: version %q is not the current one: %w", key, cond.Version, handlers.ErrConflict)
	}
	s.last++
	written := object{data: data.Bytes(), version: blob.Version(strconv.FormatUint(s.last, 10)), mod: s.now()}
	s.objects[key] = written
	return written.info(key), nil
}

func (s *Store) Stat(ctx context.Context, key string) (blob.Info, error) {
	found, err := s.find(ctx, "stat", key)
	if err != nil {
		return blob.Info{}, err
	}
	return found.info(key), nil
}

func (s *Store) List(ctx context.Context, prefix, after string, limit int) (blob.Page, error) {
	if err := blob.CheckLimit(limit); err != nil {
		return blob.Page{}, err
	}
	if ctx.Err() != nil {
		return blob.Page{}, blob.Unavailable(ctx, fmt.Sprintf("list %q", prefix), ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	page := blob.Page{Now: s.now()}
	for key, o := range s.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			page.Objects = append(page.Objects, o.info(key))
		}
	}
	slices.SortFunc(page.Objects, func(a, b blob.Info) int { return cmp.Compare(a.Key, b.Key) })
	if len(page.Objects) > limit {
		page.Objects, page.More = page.Objects[:limit:limit], true
	}
	return page, nil
}

func (s *Store) Delete(ctx context.Context, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return blob.Unavailable(ctx, fmt.Sprintf("delete %q", key), ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
	return nil
}

func (s *Store) find(ctx context.Context, verb, key string) (object, error) {
	if err := blob.CheckKey(key); err != nil {
		return object{}, err
	}
	if ctx.Err() != nil {
		return object{}, blob.Unavailable(ctx, fmt.Sprintf("%s %q", verb, key), ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.objects[key]
	if !ok {
		return object{}, fmt.Errorf("%s %q: %w", verb, key, handlers.ErrNotFound)
	}
	return found, nil
}

func (o object) info(key string) blob.Info {
	return blob.Info{Key: key, Size: int64(len(o.data)), Version: o.version, ModTime: o.mod}
}
