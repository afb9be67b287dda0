package model

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// remote is the blob.Store, the clock and the platform of whichever process is at work.
type remote struct{ x *explorer }

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	lease          = 30 * time.Second
	aeon           = time.Hour // one step of the clock: every lease, pause and deadline is over
	launchDeadline = 5 * time.Minute
)

func at(epoch int) time.Time { return t0.Add(time.Duration(epoch) * aeon) }

func (r remote) now() time.Time { return at(r.x.port.reply.epoch) }

func (r remote) info(o *object, epoch int) blob.Info {
	i := blob.Info{Key: o.key, Size: int64(len(o.data.bytes)), Version: blob.Version(strconv.FormatUint(o.data.hash, 16)), ModTime: at(epoch)}
	if o.old {
		i.ModTime = i.ModTime.Add(-aeon)
	}
	return i
}

func fail(o op, c code) error {
	class := map[code]error{notFound: handlers.ErrNotFound, conflict: handlers.ErrConflict, unavailable: handlers.ErrUnavailable}[c]
	return fmt.Errorf("%s: %w", o, class)
}

func (r remote) Get(_ context.Context, key string) (io.ReadCloser, blob.Info, error) {
	o := op{verb: get, key: key}
	res := r.x.port.do(o)
	if res.code != ok {
		return nil, blob.Info{}, fail(o, res.code)
	}
	return io.NopCloser(bytes.NewReader(res.data.bytes)), r.info(&object{key: key, data: res.data}, 0), nil
}

func (r remote) Stat(_ context.Context, key string) (blob.Info, error) {
	o := op{verb: stat, key: key}
	res := r.x.port.do(o)
	if res.code != ok {
		return blob.Info{}, fail(o, res.code)
	}
	return r.info(&object{key: key, data: res.data}, 0), nil
}

func (r remote) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (blob.Info, error) {
	if err := blob.CheckPut(key, size, cond); err != nil {
		return blob.Info{}, err
	}
	data, err := io.ReadAll(blob.Exact(ctx, body, size))
	if err != nil {
		return blob.Info{}, err
	}
	o := op{verb: put, key: key, data: r.x.content(data), absent: cond.Absent}
	if cond.Version != "" {
		if o.match, err = strconv.ParseUint(string(cond.Version), 16, 64); err != nil {
			return blob.Info{}, fmt.Errorf("%w: version %q", handlers.ErrInvalid, cond.Version)
		}
	}
	if res := r.x.port.do(o); res.code != ok {
		return blob.Info{}, fail(o, res.code)
	}
	return r.info(&object{key: key, data: o.data}, 0), nil
}

func (r remote) List(_ context.Context, prefix, after string, limit int) (blob.Page, error) {
	if err := blob.CheckLimit(limit); err != nil {
		return blob.Page{}, err
	}
	o := op{verb: list, key: prefix, after: after, limit: limit}
	res := r.x.port.do(o)
	if res.code != ok {
		return blob.Page{}, fail(o, res.code)
	}
	page := blob.Page{Now: at(0), More: res.number == 1}
	for _, obj := range res.page {
		page.Objects = append(page.Objects, r.info(obj, 0))
	}
	return page, nil
}

func (r remote) Delete(_ context.Context, key string) error {
	o := op{verb: remove, key: key}
	if res := r.x.port.do(o); res.code != ok {
		return fail(o, res.code)
	}
	return nil
}

// Launch implements handlers.Launcher.
func (r remote) Launch(_ context.Context, j handlers.Job) error {
	o := op{verb: launch, key: j.LaunchName(), number: j.Attempt}
	if res := r.x.port.do(o); res.code != ok {
		return fail(o, res.code)
	}
	return nil
}

// Status implements handlers.Launcher.
func (r remote) Status(_ context.Context, j handlers.Job) (handlers.LaunchStatus, error) {
	o := op{verb: status, key: j.LaunchName(), number: j.Attempt}
	res := r.x.port.do(o)
	if res.code != ok {
		return "", fail(o, res.code)
	}
	return [...]handlers.LaunchStatus{handlers.LaunchGone, handlers.LaunchQueued, handlers.LaunchRunning, handlers.LaunchFailed}[res.number], nil
}
