package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

var errBody = errors.New("the disk under the body broke")

// refusedPut checks that a put under a fresh and under an existing key, with every condition, fails
// as check wants and changes nothing.
func refusedPut(t *testing.T, s blob.Store, name string, refuse func(key string, cond blob.Cond) error, check func(error) string) {
	t.Helper()
	old := []byte("the old content")
	for _, c := range []struct {
		name   string
		exists bool
		cond   func(blob.Info) blob.Cond
	}{
		{"create", false, func(blob.Info) blob.Cond { return blob.Cond{Absent: true} }},
		{"put", false, func(blob.Info) blob.Cond { return blob.Cond{} }},
		{"overwrite", true, func(blob.Info) blob.Cond { return blob.Cond{} }},
		{"swap", true, func(info blob.Info) blob.Cond { return blob.Cond{Version: info.Version} }},
	} {
		key := fmt.Sprintf("%s/%s", name, c.name)
		var before blob.Info
		if c.exists {
			before = put(t, s, key, old, blob.Cond{})
		}
		if complaint := check(refuse(key, c.cond(before))); complaint != "" {
			t.Errorf("%s: %s", key, complaint)
		}
		if !c.exists {
			wantMissing(t, s, key)
			continue
		}
		if got, want := wantContent(t, s, key, old).Version, before.Version; got != want {
			t.Errorf("%s: version = %q, want the old %q", key, got, want)
		}
	}
}

func failingBody(t *testing.T, s blob.Store) {
	data := content(1, 20*mib)
	for _, c := range []struct{ size, failAt int }{{100, 0}, {100, 99}, {100, 100}, {20 * mib, mib}, {20 * mib, 9 * mib}, {20 * mib, 20 * mib}} {
		refusedPut(t, s, fmt.Sprintf("fail-%d-%d", c.size, c.failAt), func(key string, cond blob.Cond) error {
			body := &reader{left: data[:c.size], offset: c.failAt, at: func() error { return errBody }}
			_, err := s.Put(t.Context(), key, body, int64(c.size), cond)
			return err
		}, func(err error) string {
			if !errors.Is(err, errBody) || handlers.Class(err) != handlers.ErrUnavailable {
				return fmt.Sprintf("error = %v, want the body's error, unavailable", err)
			}
			return ""
		})
	}
}

func wrongSize(t *testing.T, s blob.Store) {
	data := content(1, 9*mib)
	for _, c := range []struct{ has, announced int }{{0, 1}, {9, 10}, {11, 10}, {1, 0}, {9*mib - 1, 9 * mib}, {9 * mib, 9*mib - 1}, {mib, 9 * mib}, {9 * mib, mib}} {
		refusedPut(t, s, fmt.Sprintf("size-%d-%d", c.has, c.announced), func(key string, cond blob.Cond) error {
			_, err := s.Put(t.Context(), key, bytes.NewReader(data[:c.has]), int64(c.announced), cond)
			return err
		}, func(err error) string {
			if !errors.Is(err, handlers.ErrInvalid) {
				return fmt.Sprintf("error = %v, want invalid", err)
			}
			return ""
		})
	}
}

func cancelledBefore(t *testing.T, s blob.Store) {
	put(t, s, "k", []byte("old"), blob.Cond{})
	cause := errors.New("the machine goes away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Get", func() error { _, _, err := s.Get(ctx, "k"); return err }},
		{"Stat", func() error { _, err := s.Stat(ctx, "k"); return err }},
		{"List", func() error { _, err := s.List(ctx, "", "", 10); return err }},
		{"Delete", func() error { return s.Delete(ctx, "k") }},
		{"Put", func() error { _, err := blob.PutBytes(ctx, s, "k", []byte("new"), blob.Cond{}); return err }},
		{"empty Put", func() error { _, err := blob.PutBytes(ctx, s, "k", nil, blob.Cond{}); return err }},
		{"create", func() error { _, err := blob.PutBytes(ctx, s, "new", nil, blob.Cond{Absent: true}); return err }},
	} {
		if err := c.call(); !errors.Is(err, cause) || handlers.Class(err) != handlers.ErrUnavailable {
			t.Errorf("%s: error = %v, want the cause of the cancelled context, unavailable", c.name, err)
		}
	}
	wantContent(t, s, "k", []byte("old"))
	wantMissing(t, s, "new")
}

func cancelledDuring(t *testing.T, s blob.Store) {
	cause := errors.New("the machine goes away")
	data := content(1, 20*mib)
	for _, c := range []struct{ size, at int }{{100, 50}, {20 * mib, mib}, {20 * mib, 9 * mib}} {
		refusedPut(t, s, fmt.Sprintf("cancel-%d-%d", c.size, c.at), func(key string, cond blob.Cond) error {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			body := &reader{left: data[:c.size], offset: c.at, at: func() error { cancel(cause); return nil }}
			_, err := s.Put(ctx, key, body, int64(c.size), cond)
			return err
		}, func(err error) string {
			if !errors.Is(err, cause) || handlers.Class(err) != handlers.ErrUnavailable {
				return fmt.Sprintf("error = %v, want the cause of the cancelled context, unavailable", err)
			}
			return ""
		})
	}
}

func overwriteWhileReading(t *testing.T, s blob.Store) {
	old := content(1, 9*mib)
	put(t, s, "big", old, blob.Cond{})
	r, _, err := s.Get(t.Context(), "big")
	wantNil(t, "Get", err)
	defer r.Close()
	got := make([]byte, len(old))
	_, err = io.ReadFull(r, got[:mib])
	wantNil(t, "read", err)
	put(t, s, "big", content(2, 9*mib), blob.Cond{})
	wantNil(t, "Delete", s.Delete(t.Context(), "big"))
	_, err = io.ReadFull(r, got[mib:])
	wantNil(t, "read on after an overwrite", err)
	if !bytes.Equal(got, old) {
		t.Error("what was read is not the version that was opened")
	}
}

func wholeVersions(t *testing.T, s blob.Store) {
	const size, versions = 300_000, 20
	fill := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, size+i) }
	put(t, s, "doc", fill(0), blob.Cond{})
	finished := make(chan struct{})
	parallel(4, func(i int) {
		if i == 0 {
			defer close(finished)
			for v := 1; v < versions; v++ {
				if _, err := blob.PutBytes(t.Context(), s, "doc", fill(v), blob.Cond{}); err != nil {
					t.Errorf("overwrite: %v", err)
				}
			}
			return
		}
		for last := false; !last; {
			select {
			case <-finished:
				last = true
			default:
			}
			data, info, err := blob.ReadAll(t.Context(), s, "doc")
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			if want := fill(int(data[0])); !bytes.Equal(data, want) || info.Size != int64(len(want)) {
				t.Errorf("read a mixture: %d bytes that begin with %d", len(data), data[0])
				return
			}
		}
	})
	wantContent(t, s, "doc", fill(versions-1))
}
