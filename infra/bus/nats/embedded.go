package nats

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	startTimeout = 10 * time.Second
	startPoll    = 50 * time.Millisecond
	// The server answers a publisher before its disk has synced: a killed process loses nothing,
	// a power cut the last seconds. Events are hints, so that costs time only, and syncing each
	// one would cost every event milliseconds.
	syncInterval = 2 * time.Second
)

// embedded is a NATS server in this process, alone in its directory.
type embedded struct {
	srv     *server.Server
	listens bool
	lock    *os.File
}

type embeddedConfig struct {
	dir            string
	host           string // empty: do not listen
	port           int
	user, password string
}

// parseEmbedded reads a nats+embedded:// URL. dir is used if the URL has none.
func parseEmbedded(rawURL, dir string) (embeddedConfig, error) {
	conf := embeddedConfig{dir: dir}
	u, err := url.Parse(rawURL)
	if err != nil || u.Host != "" || u.Path != "" && u.Path != "/" {
		return conf, fmt.Errorf("%w: bus URL: use nats+embedded://?dir=DIR&listen=127.0.0.1:4222", handlers.ErrInvalid)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return conf, fmt.Errorf("%w: bus URL: %w", handlers.ErrInvalid, err)
	}
	listen := "127.0.0.1:0"
	for name, values := range query {
		switch name {
		case "dir":
			conf.dir = values[0]
		case "listen":
			listen = values[0]
		default:
			return conf, fmt.Errorf("%w: bus URL: nats+embedded:// knows dir and listen, not %q", handlers.ErrInvalid, name)
		}
	}
	if conf.dir == "" {
		return conf, fmt.Errorf("%w: bus URL: an embedded NATS server needs a directory; add ?dir=DIR", handlers.ErrInvalid)
	}
	conf.user = u.User.Username()
	conf.password, _ = u.User.Password()
	if (conf.user == "") != (conf.password == "") {
		return conf, fmt.Errorf("%w: bus URL: give nats+embedded:// both a user and a password, or neither", handlers.ErrInvalid)
	}
	if listen == "none" {
		return conf, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err == nil {
		conf.port, err = strconv.Atoi(port)
	}
	if err != nil || host == "" || conf.port < 0 || conf.port > 65535 {
		return conf, fmt.Errorf("%w: bus URL: listen=%s: use host:port, such as 127.0.0.1:4222, or none", handlers.ErrInvalid, listen)
	}
	if ip := net.ParseIP(host); conf.password == "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return conf, fmt.Errorf("%w: bus URL: listen=%s is open to other machines; add a password (nats+embedded://user:password@?listen=%s) or listen on 127.0.0.1", handlers.ErrInvalid, listen, listen)
	}
	conf.host = host
	return conf, nil
}

func startEmbedded(conf embeddedConfig, log *slog.Logger) (*embedded, error) {
	lock, err := lockDir(conf.dir)
	if err != nil {
		return nil, err
	}
	opts := &server.Options{
		ServerName: "reprieve", JetStream: true, StoreDir: conf.dir, SyncInterval: syncInterval,
		DontListen: conf.host == "", Host: conf.host, Port: conf.port,
		Username: conf.user, Password: conf.password,
		NoSigs: true,
	}
	if conf.port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("%w: embedded NATS server: %w", handlers.ErrInvalid, err)
	}
	e := &embedded{srv: srv, listens: conf.host != "", lock: lock}
	fatal := make(chan string, 1)
	srv.SetLoggerV2(serverLog{log, fatal}, false, false, false)
	srv.Start()
	for deadline := time.Now().Add(startTimeout); !srv.ReadyForConnections(startPoll); {
		msg := ""
		select {
		case msg = <-fatal:
		default:
			if time.Now().Before(deadline) {
				continue
			}
			msg = "it did not start within " + startTimeout.String()
		}
		_ = e.stop()
		return nil, fmt.Errorf("%w: embedded NATS server in %s: %s", handlers.ErrUnavailable, conf.dir, msg)
	}
	return e, nil
}

// lockDir makes the directory this process's own until the returned file is closed, by whatever
// means the process ends.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: directory of the embedded NATS server: %w", handlers.ErrInvalid, err)
	}
	path := filepath.Join(dir, "reprieve.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: directory of the embedded NATS server: %w", handlers.ErrInvalid, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s belongs to the embedded NATS server of another process; stop that one, connect to it, or use another dir", handlers.ErrUnavailable, dir)
		}
		return nil, fmt.Errorf("%w: lock %s: %w", handlers.ErrUnavailable, path, err)
	}
	return f, nil
}

func (e *embedded) stop() error {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
	return e.lock.Close()
}

// serverLog hands on what the server says: complaints to the log, the first fatal one to fatal.
type serverLog struct {
	log   *slog.Logger
	fatal chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}

func (l serverLog) Warnf(format string, args ...any) {
	l.log.Warn("embedded NATS server: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l serverLog) Errorf(format string, args ...any) {
	l.log.Error("embedded NATS server: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l serverLog) Fatalf(format string, args ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, args...):
	default:
	}
}
