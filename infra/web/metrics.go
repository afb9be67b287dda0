package web

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is what the control plane counts, in a registry of its own. Safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	events   *prometheus.CounterVec
}

// NewMetrics returns counters at zero, beside those of the Go runtime and the process.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), events: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "reprieve_events_total",
		Help: "Deliveries of events to handlers, by what became of them.",
	}, []string{"handler", "outcome"})}
	m.registry.MustRegister(m.events, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Count counts one delivery to handler. Outcomes are those of infra/bus.
func (m *Metrics) Count(handler, outcome string) { m.events.WithLabelValues(handler, outcome).Inc() }

// Handler serves the metrics in Prometheus' formats.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
