package mem_test

import (
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/blobtest"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
)

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return mem.New(nil) })
}

func TestCloneIsIndependent(t *testing.T) {
	ctx := t.Context()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	original := mem.New(func() time.Time { return now })
	first, err := blob.PutBytes(ctx, original, "a", []byte("one"), blob.Cond{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := first.ModTime, now; !got.Equal(want) {
		t.Errorf("ModTime = %v, want the injected clock's %v", got, want)
	}
	clone := original.Clone()
	if _, err := blob.PutBytes(ctx, clone, "a", []byte("two"), blob.Cond{Version: first.Version}); err != nil {
		t.Fatalf("the clone does not know the original's version: %v", err)
	}
	if err := clone.Delete(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	data, info, err := blob.ReadAll(ctx, original, "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(data), "one"; got != want || info.Version != first.Version {
		t.Errorf("after changes to the clone the original has %q version %q, want %q version %q", got, info.Version, want, first.Version)
	}
}
