package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/reprieve-dev/reprieve/handlers"
)

const maxDocument = 64 << 20 // bytes; a document is read into memory

// ReadAll reads a whole document of at most 64 MiB; a larger one is ErrInvalid.
func ReadAll(ctx context.Context, store Store, key string) ([]byte, Info, error) {
	r, info, err := store.Get(ctx, key)
	if err != nil {
		return nil, Info{}, err
	}
	defer r.Close()
	if info.Size > maxDocument {
		return nil, Info{}, fmt.Errorf("read %q: %d bytes are too many for a document (limit %d): remove what does not belong there: %w", key, info.Size, maxDocument, handlers.ErrInvalid)
	}
	data := make([]byte, info.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, Info{}, Unavailable(ctx, fmt.Sprintf("read %q", key), err)
	}
	return data, info, nil
}

// PutBytes is Put of a document in memory.
func PutBytes(ctx context.Context, store Store, key string, data []byte, cond Cond) (Info, error) {
	return store.Put(ctx, key, bytes.NewReader(data), int64(len(data)), cond)
}

// All yields every object whose key begins with prefix, in the order of the keys, page by page.
// The first error ends it and comes with a zero Info.
func All(ctx context.Context, store Store, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for after := ""; ; {
			page, err := store.List(ctx, prefix, after, MaxPage)
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, info := range page.Objects {
				if !yield(info, nil) {
					return
				}
				after = info.Key
			}
			if !page.More {
				return
			}
		}
	}
}

// Exact reads body for an adapter's Put. It ends with io.EOF only after size bytes with nothing
// behind them: a body that is shorter or longer gives ErrInvalid, one that fails its own class or
// ErrUnavailable. It looks at ctx before each read, so a cancelled upload ends within one read.
func Exact(ctx context.Context, body io.Reader, size int64) io.Reader {
	return &exact{ctx: ctx, body: body, size: size, left: size}
}

type exact struct {
	ctx        context.Context
	body       io.Reader
	size, left int64
	err        error
}

func (e *exact) Read(p []byte) (int, error) {
	if e.err != nil || len(p) == 0 {
		return 0, e.err
	}
	if e.ctx.Err() != nil {
		e.err = Unavailable(e.ctx, "read body", e.ctx.Err())
		return 0, e.err
	}
	var beyond [1]byte
	if e.left == 0 {
		p = beyond[:]
	}
	p = p[:min(int64(len(p)), max(e.left, 1))]
	n, err := e.body.Read(p)
	if int64(n) > e.left {
		e.err = fmt.Errorf("body has more than the announced %d bytes: it changed while it was read: %w", e.size, handlers.ErrInvalid)
		return 0, e.err
	}
	e.left -= int64(n)
	switch {
	case err == io.EOF && e.left > 0:
		e.err = fmt.Errorf("body ended after %d of %d bytes: it changed while it was read: %w", e.size-e.left, e.size, handlers.ErrInvalid)
	case err == io.EOF:
		e.err = io.EOF
	case err != nil:
		e.err = Unavailable(e.ctx, "read body", err)
	}
	return n, e.err
}

// Unavailable wraps err as an adapter reports what it cannot name better: with the cause of ctx
// once ctx is done, with the class that err has already, else with ErrUnavailable.
func Unavailable(ctx context.Context, doing string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%s: %w: %w", doing, handlers.ErrUnavailable, cause)
	}
	if handlers.Class(err) != handlers.ErrUnavailable || errors.Is(err, handlers.ErrUnavailable) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, handlers.ErrUnavailable, err)
}
