//! All phases of a request for an endpoint: head, admission, body, target, match, delivery, answer.

use super::deliver;
use crate::exchange::phase::{AnswerPhase, HeadPhase};
use crate::exchange::{Exchange, RefusedExchange};
use crate::ingress::Conn;
use crate::intake::{admission, body};
use crate::overlap::prompt_match;
use crate::resolve::{models, own_page, target};
use crate::state::shard::Shard;
use forebay_prompt::parse::Endpoint;
use forebay_router::request::Stop;

/// Takes the request through its phases. A phase of many bytes of code ends a stage of the shard's
/// turn ([`Request::end_stage`](crate::exchange::request::Request::end_stage)).
///
/// # Errors
/// The request stops in a phase.
pub(super) async fn answer<'c>(
    shard: &Shard,
    conn: &mut Conn,
    mut exchange: Exchange<'c, HeadPhase>,
) -> Result<Exchange<'c, AnswerPhase>, RefusedExchange<'c>> {
    if let Some(page) = own_page::of(exchange.phase.endpoint) {
        let fleet = shard.workers.fleet();
        let request = &mut exchange.request;
        return match own_page::answer(&shard.env, &fleet, conn, request, page).await {
            Ok(after) => Ok(exchange.next(AnswerPhase { after })),
            Err(stop) => Err(exchange.stop(stop)),
        };
    }
    let admitted = admission::admit(shard, conn, exchange)?;
    let mut received = body::receive(shard, conn, admitted).await?;
    if received.phase.endpoint == Endpoint::Models {
        match models::body(&shard.workers.fleet(), &received.request) {
            Ok(None) => {}
            Ok(Some(page)) => {
                let after = models::send(&shard.env, conn, &mut received.request, &page).await;
                return Ok(received.next(AnswerPhase { after }));
            }
            Err(refusal) => return Err(received.stop(Stop::Refused(refusal))),
        }
    }
    received.request.end_stage().await;
    let targeted = target::find(shard, conn, received).await?;
    targeted.request.end_stage().await;
    let matched = prompt_match::find(shard, conn, targeted).await?;
    matched.request.end_stage().await;
    deliver::deliver(shard, conn, matched).await
}
