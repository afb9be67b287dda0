package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
	"github.com/reprieve-dev/reprieve/infra/bus/nats"
	"github.com/reprieve-dev/reprieve/infra/web"
)

// Server is the control plane: the handlers on a bus, the cron schedule, and the HTTP intake. Any
// number of them may run on one store and bus. Run(ctx) blocks until ctx ends.
type Server struct {
	Settings
	Listen         string // HTTP address
	Token          string // bearer token of the intake; may be empty on a loopback address
	LaunchDeadline time.Duration
	WatchInterval  time.Duration
	// Up is called once everything is ready.
	Up func(Endpoints)
}

// Endpoints is where a running Server can be reached.
type Endpoints struct {
	HTTP string `json:"http"`
	Bus  string `json:"bus"` // what to give to `reprieve run --bus`
}

// Run serves until ctx ends or something that cannot be retried fails.
func (s *Server) Run(ctx context.Context) error {
	if s.WatchInterval < time.Second {
		return fmt.Errorf("%w: --watch-interval %s: give at least 1s", handlers.ErrInvalid, s.WatchInterval)
	}
	c, uid, err := s.OpenCatalog(ctx)
	if err != nil {
		return err
	}
	b, err := s.OpenBus(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()

	if embedded, ok := b.(*nats.Bus); ok && embedded.ClientURL() != "" {
		s.Bus = embedded.ClientURL() // where the nodes that are launched here reach it
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("%w: --listen %s: %w", handlers.ErrInvalid, s.Listen, err)
	}
	metrics := web.NewMetrics()
	handler, err := web.New(web.Config{
		Publish:     b.Publish,
		ParseNotice: func(source string, raw []byte) ([]events.Event, error) { return ParseNotice(source, raw) },
		Token:       s.Token,
		Loopback:    listener.Addr().(*net.TCPAddr).IP.IsLoopback(),
		Ready: func(ctx context.Context) error {
			_, err := c.Store.List(ctx, "live/", "", 1)
			return err
		},
		Metrics: metrics.Handler(),
		Log:     s.Log,
	})
	if err != nil {
		_ = listener.Close()
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn)}

	resume := &handlers.Resume{Jobs: c, Launcher: s.Launchers(uid), Now: time.Now}
	consumers := map[string]struct {
		types  []string
		handle bus.Handler
	}{
		"notice": {[]string{events.TypeNodeNotice, events.TypeNodeNoticeCancelled}, (&handlers.Notice{Jobs: c, Nodes: c, Now: time.Now}).Handle},
		"resume": {[]string{events.TypeJobInterrupted}, resume.Handle},
		"watch": {[]string{events.TypeWatchDue}, (&handlers.Watch{
			Jobs: c, Traces: c, Launcher: resume.Launcher, Lease: s.Lease, Launch: s.LaunchDeadline, Now: time.Now,
		}).Handle},
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	settle := func(ctx context.Context, evs []events.Event) error {
		for _, e := range evs {
			s.Log.Info("published", "type", e.Type(), "job", e.Subject(), "data", string(e.Data()))
		}
		return c.Published(ctx, evs)
	}
	runner := &bus.Runner{Bus: b, Log: s.Log, Settle: settle, Count: metrics.Count}
	var workers sync.WaitGroup
	defer workers.Wait()
	for name, consumer := range consumers {
		workers.Go(func() {
			if err := runner.Run(ctx, name, consumer.types, consumer.handle); err != nil {
				stop(fmt.Errorf("consume %s: %w", name, err))
			}
		})
	}
	schedule := cron.New()
	if _, err := schedule.AddFunc("@every "+s.WatchInterval.String(), func() { s.due(ctx, b, events.TypeWatchDue) }); err != nil {
		return fmt.Errorf("%w: --watch-interval: %w", handlers.ErrInvalid, err)
	}
	schedule.Start()
	defer func() { <-schedule.Stop().Done() }()

	workers.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			stop(fmt.Errorf("%w: serve HTTP: %w", handlers.ErrUnavailable, err))
		}
	})
	if s.Up != nil {
		s.Up(Endpoints{HTTP: "http://" + listener.Addr().String(), Bus: s.Bus})
	}
	<-ctx.Done()
	s.Log.Info("stopping")
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(shutdown)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// due publishes that a periodic pass is due. Its id is the interval's number, so that any number of
// servers make one pass.
func (s *Server) due(ctx context.Context, b bus.Bus, typ string) {
	at := time.Now().UTC().Truncate(s.WatchInterval)
	e, err := events.New(typ, "/reprieve/cron", "watch", fmt.Sprintf("%s-%d", typ, at.UnixMilli()), at, events.Due{At: at})
	if err == nil {
		err = b.Publish(ctx, e)
	}
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot publish; the next tick tries again", "type", typ, "error", err)
	}
}

// ParseNotice turns a native notice into events.
func ParseNotice(source string, raw []byte) ([]events.Event, error) {
	evs, err := notice.Parse(source, raw, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", handlers.ErrInvalid, err)
	}
	return evs, nil
}
