// Package transfer moves the files of a checkpoint between a directory and a store, verified. It is
// sequential and simple; what a checkpoint is, and when one counts, is decided elsewhere.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
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

// Upload puts files below prefix, one after another, as prefix/<path>, and returns what was put, in
// the same order. Every file is read once: its digest is that of the bytes that went to the store.
// Whether the files are one version of a checkpoint is for the caller to know.
//
// Errors name the file: ErrInvalid (a name that no checkpoint can have, not a regular file),
// ErrUnavailable (try again; also a file whose size changed while it was read), those of the store.
// What an error leaves behind may be overwritten.
func Upload(ctx context.Context, store blob.Store, prefix string, files []Source) ([]handlers.File, error) {
	done := make([]handlers.File, 0, len(files))
	for _, f := range files {
		if why := checkPath(f.Path); why != "" {
			return nil, fmt.Errorf("%w: the file %q cannot be part of a checkpoint: its name %s: rename it", handlers.ErrInvalid, f.Path, why)
		}
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
		return handlers.File{}, blob.Unavailable(ctx, "open it", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return handlers.File{}, blob.Unavailable(ctx, "look at it", err)
	}
	if !info.Mode().IsRegular() {
		return handlers.File{}, fmt.Errorf("%w: it is not a regular file (%s): move it out of the checkpoint", handlers.ErrInvalid, info.Mode())
	}
	body := &reader{file: f, left: info.Size(), digest: sha256.New()}
	if _, err := store.Put(ctx, key, body, info.Size(), blob.Cond{}); err != nil {
		return handlers.File{}, err
	}
	now, err := f.Stat()
	if err != nil {
		return handlers.File{}, blob.Unavailable(ctx, "look at it again", err)
	}
	if now.Size() != info.Size() {
		return handlers.File{}, fmt.Errorf("%w: its size went from %d to %d bytes while it was read", handlers.ErrUnavailable, info.Size(), now.Size())
	}
	return handlers.File{
		Path: source.Path, Size: info.Size(), SHA256: hex.EncodeToString(body.digest.Sum(nil)),
		Mode: uint32(info.Mode().Perm()), MTime: info.ModTime().UTC(),
	}, nil
}

// reader reads as many bytes of a file as it had when it was opened. What is appended later is not
// read; a file that got shorter fails, with the class that it has for Upload.
type reader struct {
	file   *os.File
	left   int64
	digest hash.Hash
}

func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.file.Read(p[:min(int64(len(p)), r.left)])
	r.digest.Write(p[:n])
	r.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it got %d bytes shorter while it was read", handlers.ErrUnavailable, r.left)
	}
	return n, err
}
