package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// errGarbled: a document is not JSON of the right shape. Another reading gives the same.
var errGarbled = fmt.Errorf("%w: not a document of ours", handlers.ErrPermanent)

// callLimit bounds every single operation on documents: a store that hangs is a store that is away.
const callLimit = 30 * time.Second

func readDoc(ctx context.Context, s blob.Store, key string, doc any) (blob.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	data, info, err := blob.ReadAll(ctx, s, key)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(data, doc); err != nil {
		return "", fmt.Errorf("%w: %s: %w", errGarbled, key, err)
	}
	return info.Version, nil
}

func writeDoc(ctx context.Context, s blob.Store, key string, doc any, cond blob.Cond) error {
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if _, err := blob.PutBytes(ctx, s, key, append(data, '\n'), cond); err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// updateDoc reads, changes and swaps a document, from its zero value if it does not exist.
// change returns false if the document is as it wants it already.
func updateDoc[T any](ctx context.Context, s blob.Store, key string, change func(*T) bool) error {
	var last error
	for range maxTries {
		var doc T
		cond := blob.Cond{}
		version, err := readDoc(ctx, s, key, &doc)
		switch {
		case err == nil:
			cond.Version = version
		case errors.Is(err, handlers.ErrNotFound):
			cond.Absent = true
		default:
			return err
		}
		if !change(&doc) {
			return nil
		}
		last = writeDoc(ctx, s, key, doc, cond)
		if class := handlers.Class(last); class != handlers.ErrConflict && class != handlers.ErrUnavailable || ctx.Err() != nil {
			return last
		}
	}
	return last
}

// createDoc writes a document create-only; it is nil if one that same accepts is there already.
func createDoc[T any](ctx context.Context, s blob.Store, key string, doc T, same func(T) bool) error {
	err := writeDoc(ctx, s, key, doc, blob.Cond{Absent: true})
	if err == nil || !errors.Is(err, handlers.ErrConflict) && !errors.Is(err, handlers.ErrUnavailable) {
		return err
	}
	var have T
	if _, readErr := readDoc(ctx, s, key, &have); readErr != nil {
		if errors.Is(readErr, handlers.ErrNotFound) {
			return err // the write did not take effect
		}
		return readErr
	}
	if !same(have) {
		return fmt.Errorf("%w: %s exists with other content", handlers.ErrPermanent, key)
	}
	return nil
}

func listPage(ctx context.Context, s blob.Store, prefix, after string, limit int) (blob.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return s.List(ctx, prefix, after, limit)
}

// pages lists everything below prefix, a page at a time.
func pages(ctx context.Context, s blob.Store, prefix string) iter.Seq2[blob.Page, error] {
	return func(yield func(blob.Page, error) bool) {
		after := ""
		for {
			page, err := listPage(ctx, s, prefix, after, 1000)
			if !yield(page, err) || err != nil || !page.More || len(page.Objects) == 0 {
				return
			}
			after = page.Objects[len(page.Objects)-1].Key
		}
	}
}

// children lists the segments directly below prefix that have something below them, with one LIST
// each: it jumps over what lies below ('0' is the character behind '/').
func children(ctx context.Context, s blob.Store, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		after := ""
		for {
			page, err := listPage(ctx, s, prefix, after, 1)
			if err != nil {
				yield("", err)
				return
			}
			if len(page.Objects) == 0 {
				return
			}
			after = page.Objects[0].Key
			name, _, below := strings.Cut(strings.TrimPrefix(after, prefix), "/")
			if !below {
				continue
			}
			if !yield(name, nil) {
				return
			}
			after = prefix + name + "0"
		}
	}
}
