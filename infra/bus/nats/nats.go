// Package nats is a bus on NATS JetStream: a server elsewhere (nats://host:4222) or one within
// this process (nats+embedded://).
//
// One stream, REPRIEVE, holds all events for seven days under reprieve.events.<type>; a second
// one, REPRIEVE_DEAD, what could not be handled. Events are structured-mode JSON CloudEvents;
// binary mode (ce-* headers) is read, too. The package configures no clusters, accounts or TLS:
// replicas and placement of existing streams stay as their owner set them.
package nats

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
)

const (
	streamName  = "REPRIEVE"
	eventPrefix = "reprieve.events."
	deadName    = "REPRIEVE_DEAD"
	deadSubject = "reprieve.dead"

	retention     = 7 * 24 * time.Hour
	deadRetention = 90 * 24 * time.Hour
	dedupWindow   = 10 * time.Minute

	contentType     = "Content-Type"
	structured      = "application/cloudevents+json"
	headerReason    = "Reprieve-Reason" // Go-quoted: a header holds one line
	headerDeadType  = "Reprieve-Type"
	maxReason       = 6 << 10 // bytes; quoted at most ten times that, and headers end at 64 KiB
	connectTimeout  = 5 * time.Second
	pingEvery       = 10 * time.Second
	reconnectWait   = 500 * time.Millisecond
	requestDeadline = 5 * time.Second // of one request, where the caller's context has none

	invalidConfig jetstream.ErrorCode = 10052 // NATS server, errors.json: JSStreamInvalidConfigF
)

// Options adjust Open.
type Options struct {
	Dir     string        // where an embedded server keeps its files, if the URL has no dir
	AckWait time.Duration // how long a subscriber has to settle a message; 0 means 30 s
	Log     *slog.Logger  // losses of the connection, complaints of the embedded server
}

// Bus is a bus.Bus on NATS JetStream. Make it with Open.
type Bus struct {
	conn    *client.Conn
	js      jetstream.JetStream
	server  *embedded // nil unless this process runs it
	ackWait time.Duration
	log     *slog.Logger
	close   sync.Once
}

// Open connects to the server of rawURL, makes sure that the streams are there, and keeps the
// connection up for ever.
//
//	nats://[user:password@]host:4222[,nats://host2:4222]   also tls://
//	nats+embedded://[user:password@][?dir=DIR][&listen=ADDR]
//
// The embedded server listens for other processes on ADDR: a loopback address (with port 0, the
// default, a free one; see ClientURL), any address if there is a password, none for no port.
// ErrInvalid: the URL. ErrPermanent: a server without JetStream, or streams that do not fit.
// ErrUnavailable: no server there, or DIR belongs to another process.
func Open(ctx context.Context, rawURL string, opts Options) (*Bus, error) {
	b := &Bus{ackWait: opts.AckWait, log: opts.Log}
	if b.ackWait == 0 {
		b.ackWait = 30 * time.Second
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	target, conns, err := b.target(rawURL, opts.Dir)
	if err != nil {
		return nil, err
	}
	if err := b.connect(ctx, target, conns); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// target checks rawURL, starts the server if it is an embedded one, and returns what to connect to.
func (b *Bus) target(rawURL, dir string) (string, []client.Option, error) {
	if strings.HasPrefix(rawURL, "nats+embedded://") {
		conf, err := parseEmbedded(rawURL, dir)
		if err != nil {
			return "", nil, err
		}
		if b.server, err = startEmbedded(conf, b.log); err != nil {
			return "", nil, err
		}
		return "nats+embedded://" + conf.dir, []client.Option{client.InProcessServer(b.server.srv), client.UserInfo(conf.user, conf.password)}, nil
	}
	for part := range strings.SplitSeq(rawURL, ",") {
		u, err := url.Parse(part)
		if err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return "", nil, fmt.Errorf("%w: bus URL: use nats://host:4222, tls://host:4222 or nats+embedded://", handlers.ErrInvalid)
		}
	}
	return rawURL, nil, nil
}

func (b *Bus) connect(ctx context.Context, target string, opts []client.Option) error {
	timeout := connectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	opts = append(opts,
		client.Name("reprieve"), client.Timeout(timeout), client.PingInterval(pingEvery),
		client.MaxReconnects(-1), client.ReconnectWait(reconnectWait),
		client.DisconnectErrHandler(func(_ *client.Conn, err error) {
			if err != nil {
				b.log.Warn("lost the connection to NATS; reconnecting", "error", err)
			}
		}),
		client.ReconnectHandler(func(c *client.Conn) { b.log.Info("reconnected to NATS", "server", c.ConnectedUrlRedacted()) }),
		client.ErrorHandler(func(_ *client.Conn, _ *client.Subscription, err error) { b.log.Warn("NATS", "error", err) }))
	var err error
	if b.conn, err = client.Connect(target, opts...); err != nil {
		return fmt.Errorf("%w: connect to NATS at %s: %w; is the server running there?", handlers.ErrUnavailable, redacted(target), err)
	}
	if b.js, err = jetstream.New(b.conn, jetstream.WithDefaultTimeout(requestDeadline)); err != nil {
		return fmt.Errorf("%w: %w", handlers.ErrInvalid, err)
	}
	_, err = b.js.AccountInfo(ctx)
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) || errors.Is(err, client.ErrNoResponders) {
		return fmt.Errorf("%w: the NATS server at %s has no JetStream; start it with nats-server -js", handlers.ErrPermanent, redacted(target))
	}
	if err != nil {
		return unavailable(ctx, "ask NATS for JetStream", err)
	}
	return b.ensureStreams(ctx)
}

func redacted(target string) string {
	var out []string
	for part := range strings.SplitSeq(target, ",") {
		if u, err := url.Parse(part); err == nil {
			out = append(out, u.Redacted())
		}
	}
	return strings.Join(out, ",")
}

func (b *Bus) ensureStreams(ctx context.Context) error {
	for _, want := range []jetstream.StreamConfig{
		{Name: streamName, Subjects: []string{eventPrefix + ">"}, MaxAge: retention, Duplicates: dedupWindow, Description: "Reprieve's events"},
		{Name: deadName, Subjects: []string{deadSubject}, MaxAge: deadRetention, Duplicates: dedupWindow, Description: "what Reprieve could not handle, and why"},
	} {
		if err := b.ensureStream(ctx, want); err != nil {
			return err
		}
	}
	return nil
}

// ensureStream creates the stream, or brings what Reprieve relies on in an existing one up to date.
func (b *Bus) ensureStream(ctx context.Context, want jetstream.StreamConfig) error {
	want.Storage = jetstream.FileStorage
	_, err := b.js.CreateStream(ctx, want)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		var s jetstream.Stream
		if s, err = b.js.Stream(ctx, want.Name); err == nil {
			have := s.CachedInfo().Config
			if slices.Equal(have.Subjects, want.Subjects) && have.Retention == want.Retention && have.MaxAge == want.MaxAge && have.Duplicates == want.Duplicates {
				return nil
			}
			have.Subjects, have.Retention, have.MaxAge, have.Duplicates = want.Subjects, want.Retention, want.MaxAge, want.Duplicates
			_, err = b.js.UpdateStream(ctx, have)
		}
	}
	var refused *jetstream.APIError
	if errors.As(err, &refused) && (refused.Code < 500 || refused.ErrorCode == invalidConfig) {
		return fmt.Errorf("%w: set up the stream %s: %w; delete or rename what is in its way", handlers.ErrPermanent, want.Name, err)
	}
	if err != nil {
		return unavailable(ctx, "set up the stream "+want.Name, err)
	}
	return nil
}

// unavailable wraps err, or the cause of ctx if that has ended.
func unavailable(ctx context.Context, verb string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", verb, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %s: %w", handlers.ErrUnavailable, verb, err)
}

// ClientURL is where other processes reach the embedded server; empty if it does not listen, or
// is not embedded.
func (b *Bus) ClientURL() string {
	if b.server == nil || !b.server.listens {
		return ""
	}
	return b.server.srv.ClientURL()
}

// Publish implements bus.Bus. Events are stored in their order.
func (b *Bus) Publish(ctx context.Context, evs ...events.Event) error {
	msgs := make([]*client.Msg, len(evs))
	for i, e := range evs {
		raw, err := bus.Encode(e)
		if err != nil {
			return err
		}
		msgs[i] = &client.Msg{Subject: eventPrefix + e.Type(), Data: raw, Header: client.Header{contentType: {structured}}}
	}
	for i, msg := range msgs {
		if _, err := b.js.PublishMsg(ctx, msg, jetstream.WithMsgID(evs[i].ID())); err != nil {
			return unavailable(ctx, "publish "+evs[i].Type(), err)
		}
	}
	return nil
}

// DeadLetter implements bus.Bus. What is too big for the server together with its reason, which
// only a foreign publisher can send, is kept without its end, and the reason says so.
func (b *Bus) DeadLetter(ctx context.Context, raw []byte, reason string) error {
	msg := &client.Msg{Subject: deadSubject, Header: client.Header{}}
	if e, err := bus.Decode(raw); err == nil {
		msg.Header.Set(headerDeadType, e.Type())
	}
	if limit := int(b.conn.MaxPayload()) - 10*maxReason; len(raw) > limit {
		reason = fmt.Sprintf("%s (only the first %d of %d bytes were kept)", reason, limit, len(raw))
		raw = raw[:limit]
	}
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	msg.Data = raw
	msg.Header.Set(headerReason, strconv.Quote(reason))
	sum := sha256.Sum256(append([]byte(reason+"\x00"), raw...))
	if _, err := b.js.PublishMsg(ctx, msg, jetstream.WithMsgID(hex.EncodeToString(sum[:16]))); err != nil {
		return unavailable(ctx, "dead-letter", err)
	}
	return nil
}

// DeadLetters returns what was dead-lettered so far, oldest first. It ends with the first error.
func (b *Bus) DeadLetters(ctx context.Context) iter.Seq2[bus.Dead, error] {
	return func(yield func(bus.Dead, error) bool) {
		s, err := b.js.Stream(ctx, deadName)
		if err != nil {
			yield(bus.Dead{}, unavailable(ctx, "open the dead letters", err))
			return
		}
		last := s.CachedInfo().State.LastSeq
		for seq := uint64(1); seq <= last; seq++ {
			// With a subject, the server answers with the next message from seq on.
			msg, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(deadSubject))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return
			}
			if err != nil {
				yield(bus.Dead{}, unavailable(ctx, "read a dead letter", err))
				return
			}
			seq = msg.Sequence
			reason := msg.Header.Get(headerReason)
			if plain, err := strconv.Unquote(reason); err == nil {
				reason = plain
			}
			if !yield(bus.Dead{Raw: msg.Data, Reason: reason, Type: msg.Header.Get(headerDeadType), At: msg.Time}, nil) {
				return
			}
		}
	}
}

// Close implements bus.Bus. Acks given before it reach the server; an embedded server is stopped.
func (b *Bus) Close() error {
	var err error
	b.close.Do(func() {
		if b.conn != nil {
			_ = b.conn.FlushTimeout(time.Second) // at worst acks are lost: delivered again
			b.conn.Close()
		}
		if b.server != nil {
			err = b.server.stop()
		}
	})
	return err
}
