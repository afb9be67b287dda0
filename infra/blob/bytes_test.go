package blob_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
)

func TestExact(t *testing.T) {
	broken := errors.New("broken")
	refused := fmt.Errorf("refused: %w", handlers.ErrPermanent)
	for _, c := range []struct {
		name  string
		body  io.Reader
		size  int64
		want  string
		class error
		is    error
	}{
		{"exact", strings.NewReader("abc"), 3, "abc", nil, nil},
		{"empty", strings.NewReader(""), 0, "", nil, nil},
		{"byte by byte", iotest.OneByteReader(strings.NewReader("abc")), 3, "abc", nil, nil},
		{"end with the data", iotest.DataErrReader(strings.NewReader("abc")), 3, "abc", nil, nil},
		{"short", strings.NewReader("ab"), 3, "ab", handlers.ErrInvalid, nil},
		{"short, end with the data", iotest.DataErrReader(strings.NewReader("ab")), 3, "ab", handlers.ErrInvalid, nil},
		{"long", strings.NewReader("abcd"), 3, "abc", handlers.ErrInvalid, nil},
		{"long, byte by byte", iotest.OneByteReader(strings.NewReader("abcd")), 3, "abc", handlers.ErrInvalid, nil},
		{"more than nothing", strings.NewReader("a"), 0, "", handlers.ErrInvalid, nil},
		{"broken", io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(broken)), 3, "ab", handlers.ErrUnavailable, broken},
		{"broken at the end", io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), 3, "abc", handlers.ErrUnavailable, broken},
		{"broken with a class", iotest.ErrReader(refused), 3, "", handlers.ErrPermanent, refused},
	} {
		got, err := io.ReadAll(blob.Exact(t.Context(), c.body, c.size))
		if string(got) != c.want || handlers.Class(err) != c.class || (c.is != nil && !errors.Is(err, c.is)) {
			t.Errorf("%s: read %q, error %v; want %q, class %v, cause %v", c.name, got, err, c.want, c.class, c.is)
		}
	}
}

func FuzzExact(f *testing.F) {
	f.Add([]byte("abc"), int64(3), 2)
	f.Add([]byte("abcd"), int64(3), 4)
	f.Fuzz(func(t *testing.T, body []byte, size int64, chunk int) {
		if size < 0 || size > 1<<20 || chunk < 1 || chunk > 1<<16 {
			return
		}
		var got bytes.Buffer
		_, err := io.CopyBuffer(struct{ io.Writer }{&got}, blob.Exact(t.Context(), bytes.NewReader(body), size), make([]byte, chunk))
		if (err == nil) != (int64(len(body)) == size) {
			t.Errorf("body of %d bytes announced as %d: error %v", len(body), size, err)
		}
		if !bytes.HasPrefix(body, got.Bytes()) || int64(got.Len()) > size {
			t.Errorf("read %d bytes that are not the first of the body", got.Len())
		}
	})
}

func TestUnavailable(t *testing.T) {
	cause := errors.New("cause")
	over, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	other := errors.New("other")
	for _, c := range []struct {
		name  string
		ctx   context.Context
		err   error
		class error
		is    error
	}{
		{"no class", context.Background(), other, handlers.ErrUnavailable, other},
		{"a class of its own", context.Background(), fmt.Errorf("x: %w", handlers.ErrInvalid), handlers.ErrInvalid, nil},
		{"cancelled", over, over.Err(), handlers.ErrUnavailable, cause},
		{"cancelled, another error", over, other, handlers.ErrUnavailable, cause},
		{"cancelled, the cause itself", over, cause, handlers.ErrUnavailable, cause},
	} {
		got := blob.Unavailable(c.ctx, "do it", c.err)
		if handlers.Class(got) != c.class || !errors.Is(got, c.class) || (c.is != nil && !errors.Is(got, c.is)) || !strings.HasPrefix(got.Error(), "do it: ") {
			t.Errorf("%s: %v, want class %v and %v", c.name, got, c.class, c.is)
		}
		if n := strings.Count(got.Error(), "unavailable"); n > 1 {
			t.Errorf("%s: %v says unavailable %d times", c.name, got, n)
		}
	}
}

// huge claims an object that no document should be.
type huge struct{ blob.Store }

func (huge) Get(context.Context, string) (io.ReadCloser, blob.Info, error) {
	return io.NopCloser(strings.NewReader("")), blob.Info{Size: 64<<20 + 1}, nil
}

func TestReadAll(t *testing.T) {
	s := mem.New(nil)
	if _, _, err := blob.ReadAll(t.Context(), s, "k"); !errors.Is(err, handlers.ErrNotFound) {
		t.Errorf("ReadAll of a missing key: error = %v, want not found", err)
	}
	if _, _, err := blob.ReadAll(t.Context(), huge{}, "k"); !errors.Is(err, handlers.ErrInvalid) {
		t.Errorf("ReadAll of 64 MiB and a byte: error = %v, want invalid", err)
	}
}

func TestAllStopsEarly(t *testing.T) {
	s := mem.New(nil)
	for i := range 5 {
		if _, err := blob.PutBytes(t.Context(), s, fmt.Sprint(i), nil, blob.Cond{}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range blob.All(t.Context(), s, "") {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 2 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs []error
	for _, err := range blob.All(ctx, s, "") {
		errs = append(errs, err)
	}
	if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("All with a cancelled context yields errors %v, want that once", errs)
	}
}
