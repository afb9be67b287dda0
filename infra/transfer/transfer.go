// Package transfer moves the files of a checkpoint between a directory and a store, verified. It is
// sequential and simple; what a checkpoint is, and when one counts, is decided elsewhere.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// Source is one file to upload.
type Source struct {
	Path string // relative to the checkpoint directory, with slashes
	Open func() (*os.File, error)
}

// Upload puts files below prefix, one after another, as prefix/<path>, and returns what was put. The
// digest is computed in the same pass. Errors: ErrInvalid (a name that cannot be a key), ErrUnavailable (try again; a file
// that changed its size while it was read, too). What an error leaves behind may be overwritten.
func Upload(ctx context.Context, store blob.Store, prefix string, files []Source) ([]handlers.File, error) {
	done := make([]handlers.File, 0, len(files))
	for _, f := range files {
		file, err := upload(ctx, store, prefix+"/"+f.Path, f)
		if err != nil {
			return nil, fmt.Errorf("upload %s: %w", f.Path, err)
		}
		done = append(done, file)
	}
	return done, nil
}

func upload(ctx context.Context, store blob.Store, key string, source Source) (handlers.File, error) {
	f, err := source.Open()
	if err != nil {
		return handlers.File{}, fmt.Errorf("%w: %w", handlers.ErrUnavailable, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return handlers.File{}, fmt.Errorf("%w: %w", handlers.ErrUnavailable, err)
	}
	digest := sha256.New()
	// A file that shrank makes the body too short, which the store refuses; one that grew is cut at
	// the size that was seen.
	body := io.TeeReader(io.LimitReader(f, info.Size()), digest)
	_, putErr := store.Put(ctx, key, body, info.Size(), blob.Cond{})
	if now, err := f.Stat(); err == nil && now.Size() != info.Size() {
		return handlers.File{}, fmt.Errorf("%w: its size changed while it was read", handlers.ErrUnavailable)
	}
	if putErr != nil {
		return handlers.File{}, putErr
	}
	return handlers.File{
		Path: source.Path, Size: info.Size(), SHA256: hex.EncodeToString(digest.Sum(nil)),
		Mode: uint32(info.Mode().Perm()), MTime: info.ModTime().UTC(),
	}, nil
}
