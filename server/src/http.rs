//! Health, readiness and metrics over HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::resident_bytes;
use crate::server::Server;

/// Serves until the server stops.
pub async fn serve(server: Arc<Server>, listener: TcpListener) {
    let stop = server.stop.clone();
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics));
    #[cfg(feature = "failpoints")]
    let router = router
        .route(
            "/debug/failpoint",
            axum::routing::post(crate::failpoints::set_failpoint),
        )
        .route("/debug/delay", axum::routing::post(crate::failpoints::set_delay));
    let router = router.with_state(server);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "http server stopped");
    }
}

async fn ready(State(server): State<Arc<Server>>) -> (StatusCode, &'static str) {
    if server.stop.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

async fn metrics(State(server): State<Arc<Server>>) -> String {
    let m = &server.metrics;
    m.connections
        .set(i64::try_from(server.connections()).unwrap_or(i64::MAX));
    m.epoch
        .set(i64::try_from(server.engine.newest_epoch()).unwrap_or(i64::MAX));
    if let Some(bytes) = resident_bytes() {
        m.resident_bytes.set(bytes);
    }
    let sources = tokio::task::block_in_place(|| server.engine.status("sources"));
    m.set_sources(&sources);
    m.text()
}
