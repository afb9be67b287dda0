package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/events/notice"
	"github.com/reprieve-dev/reprieve/functions/internal/app"
	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/bus"
)

func eventsCommand(g *globals) *cobra.Command {
	var fromStart bool
	cmd := &cobra.Command{Use: "events", Short: "Look at the events on the bus", RunE: group}
	tail := &cobra.Command{
		Use: "tail", Short: "Print events as they come, until interrupted", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := g.OpenBus(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = b.Close() }()
			feed, err := b.Subscribe(cmd.Context(), bus.Subscription{Types: []string{bus.Any}, FromStart: fromStart})
			if err != nil {
				return err
			}
			defer func() { _ = feed.Close() }()
			for {
				m, err := feed.Next(cmd.Context())
				if cmd.Context().Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				if err := printEvent(cmd.OutOrStdout(), g.output, m); err != nil {
					return err
				}
			}
		},
	}
	tail.Flags().BoolVar(&fromStart, "from-start", false, "first what the bus still holds")
	cmd.AddCommand(tail)
	return cmd
}

func printEvent(w io.Writer, output string, m bus.Message) error {
	var err error
	switch {
	case m.Err != nil:
		_, err = fmt.Fprintf(w, "malformed: %v\n", m.Err)
	case output == "json":
		var line []byte
		if line, err = json.Marshal(m.Event); err == nil {
			_, err = fmt.Fprintf(w, "%s\n", line)
		}
	default:
		_, err = fmt.Fprintf(w, "%s  %-36s %-24s %s\n", m.Event.Time().Local().Format("15:04:05.000"), m.Event.Type(), m.Event.Subject(), m.Event.Data())
	}
	return err
}

func noticeCommand(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "notice", Short: "Parse native notices, or send one as a drill", RunE: group}
	cmd.AddCommand(noticeParse(g), noticeSend(g))
	return cmd
}

func noticeParse(*globals) *cobra.Command {
	var source string
	cmd := &cobra.Command{
		Use: "parse < RAW", Short: "Print the CloudEvents that a native notice means, one JSON line each", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1<<20))
			if err != nil {
				return fmt.Errorf("%w: read standard input: %w", handlers.ErrInvalid, err)
			}
			evs, err := app.ParseNotice(source, raw)
			if err != nil {
				return err
			}
			if len(evs) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "reprieve: nothing in it that concerns Reprieve")
			}
			for _, e := range evs {
				if err := printEvent(cmd.OutOrStdout(), "json", bus.Message{Event: e}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&source, "source", "auto", "auto or aws")
	return cmd
}

func noticeSend(g *globals) *cobra.Command {
	var node, kind string
	var in time.Duration
	var cancelled bool
	cmd := &cobra.Command{
		Use: "send --node PROVIDER/INSTANCE", Short: "Send a notice to the bus: a drill", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := app.ParseNode(node)
			if err != nil {
				return err
			}
			now := time.Now().UTC()
			data := events.Notice{Provider: n.Provider, Instance: n.Instance, Kind: events.Kind(kind), NativeID: "drill", Cancelled: cancelled}
			if data.Kind.Effect() == events.EffectNone {
				return fmt.Errorf("%w: --kind %q: use one of %v", handlers.ErrInvalid, kind, events.Kinds)
			}
			if in < 0 {
				return fmt.Errorf("%w: --in %s: give a duration that is not negative", handlers.ErrInvalid, in)
			}
			if data.Kind.Effect() != events.EffectGone {
				deadline := now.Add(in)
				data.Deadline = &deadline
			}
			e, err := notice.Event(data, now)
			if err != nil {
				return err
			}
			if g.Bus == app.NoBus {
				return usage(cmd, errors.New("--bus is missing: give the one that `reprieve serve` printed"))
			}
			b, err := g.OpenBus(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = b.Close() }()
			if err := b.Publish(cmd.Context(), e); err != nil {
				return err
			}
			return g.print(cmd, data, func() string {
				return fmt.Sprintf("sent: %s of %s in %s (event %s)\n", kind, n, in, e.ID())
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the machine, such as aws/i-0123456789abcdef0; `reprieve jobs show` says where a job runs")
	cmd.Flags().StringVar(&kind, "kind", string(events.KindPreempt), fmt.Sprintf("one of %v", events.Kinds))
	cmd.Flags().DurationVar(&in, "in", 30*time.Second, "time until the machine goes away")
	cmd.Flags().BoolVar(&cancelled, "cancel", false, "withdraw a notice that was sent with the same kind and time")
	return cmd
}
